"""The HTTP and websocket server. It speaks the contract, asks the controller, and knows no torch."""
