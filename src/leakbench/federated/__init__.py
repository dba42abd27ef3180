"""Federated learning: the client's step, the message on the wire, the server's average."""
