import socket

from ._exchange import Offer
from ._queue_pair import QueuePair
from .sockets import Options

def attach_iw(client: Options, queue: QueuePair, offer: Offer, lifeline: socket.socket) -> None: ...
def attach_shm(client: Options, queue: QueuePair, offer: Offer, lifeline: socket.socket) -> None: ...
