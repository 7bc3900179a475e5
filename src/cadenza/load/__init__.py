"""The only room that touches sockets as a client: transport, one request's exchange, the open and the closed loop."""
