import socket

class TcpStream:
    def __init__(self, sock: socket.socket, timeout: float | None, spin: int) -> None: ...
