import socket

class TcpStream:
    classic: bool
    unmarked: bool
    def __init__(self, sock: socket.socket, timeout: float | None, spin: int) -> None: ...
