"""The aiohttp server: routes, websocket, authentication, metrics. Never imports torch."""
