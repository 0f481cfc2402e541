"""What both sides of the wire agree on: messages, errors, geometry, limits, tensor framing.

Promise: standard library only, relative imports only. The ComfyUI side imports this package under another
module name than the engine does, so errors are compared by ``code``, never by class.
"""
