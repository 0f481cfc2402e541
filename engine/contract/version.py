"""The versions that two programs compare before they talk."""

ENGINE_VERSION = "0.1.0"
"""Version of this release, as ``/v1/info`` reports it."""

PROTOCOL_VERSION = 1
"""Version of the messages. A client that names another one is refused with ``protocol_mismatch``."""
