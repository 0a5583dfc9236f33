"""Opening the daemon's RDMA devices: the software devices of the transports' rows (rdma/transport.pyx), and a device of
the system if there is any."""

import os
import socket
import sys

from rmemcached.host import host_identity
from rmemcached.server.sockets import ServerError, choose_cm_addresses
from rmemcached.settings import of_device

from libc.errno cimport EADDRINUSE, EADDRNOTAVAIL, ENODEV, ENOENT
from libc.stdint cimport uint16_t
from libc.string cimport memcpy, memset

from rmemcached.sys.linux cimport AF_INET, AF_INET6, htons, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage
from rmemcached.rdma.wire cimport RDMA_HOST_MAX, rdma_transport
from rmemcached.rdma.device cimport RDMA_DEVICES, RDMA_PATH_MAX, shm_endpoint, transport_ops
from rmemcached.rdma.transport cimport SYSTEM_TRANSPORT, transport_of
from rmemcached.server.devices cimport devices_describe, devices_listen, devices_open, rdma_devices
from rmemcached.server.listener cimport admit_cm
from rmemcached.verbs.port cimport GID_ANY, port_spec
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport verbs_provider

cdef enum:
    WHY_SIZE = 256


def descriptors_of_a_client(*, bint near):
    """The number of the daemon's descriptors for a client, over the transport that needs the most. near: shared memory
    is offered."""
    cdef unsigned int number
    cdef unsigned int most = 1
    for number in range(<unsigned int>RDMA_DEVICES):
        if near or not transport_of(number).near:
            most = max(most, transport_of(number).descriptors)
    return most


# ---- software devices ------------------------------------------------------------------------------------------------

cdef void fill_endpoint(shm_endpoint *endpoint, shm_path) except *:
    """Describes where clients on this host connect for shared memory."""
    memset(endpoint, 0, sizeof(shm_endpoint))
    identity, netns = host_identity()
    host = identity.encode()
    path = os.fsencode(shm_path)
    memcpy(endpoint.host, <const char *>host, min(len(host), RDMA_HOST_MAX))
    memcpy(endpoint.path, <const char *>path, min(len(path), RDMA_PATH_MAX - 1))
    # Only abstract names belong to a network namespace.
    endpoint.netns = netns if path.startswith(b"@") else 0


cdef void open_own(server *s, rdma_transport number, shm_path) except *:
    """Opens the software device of a transport."""
    cdef const transport_ops *transport = transport_of(number)
    cdef port_spec spec
    cdef shm_endpoint endpoint
    cdef char why[WHY_SIZE]
    memset(&spec, 0, sizeof(spec))
    spec.device = transport.device
    spec.gid_index = GID_ANY
    if transport.near:
        fill_endpoint(&endpoint, shm_path)
    if not devices_open(&s.devices, transport.provider, &spec, number, &endpoint if transport.near else NULL,
                        why, sizeof(why)):
        without = "-o rdma_shm=none" if transport.near else "-o no_rdma"
        raise ServerError(f"RDMA: {(<bytes>why).decode()}; {without} starts the daemon without this device")
    s.has_devices = True


# ---- the system's device ---------------------------------------------------------------------------------------------

cdef open_system(server *s, settings, bytes device_name):
    """Opens the device of the system. Returns None, or the reason why no such device is open."""
    cdef rdma_devices *d = &s.devices
    cdef const char *absent = NULL
    cdef const verbs_provider *system = system_provider(&absent)
    cdef char why[WHY_SIZE]
    d.spec.device = <const char *>device_name if device_name is not None else NULL
    d.spec.port = settings.rdma_port
    d.spec.gid_index = settings.rdma_gid_index
    d.spec.iwarp = settings.rdma_cm_port != 0
    s.has_system_devices = system != NULL
    if system == NULL:
        return absent.decode()
    if not devices_open(d, system, &d.spec, SYSTEM_TRANSPORT, NULL, why, sizeof(why)):
        return (<bytes>why).decode()
    return None


cdef void fill_address(sockaddr_storage *out, int family, host, int port, unsigned int scope) except *:
    cdef sockaddr_in *four = <sockaddr_in *>out
    cdef sockaddr_in6 *six = <sockaddr_in6 *>out
    packed = socket.inet_pton(family, host.partition("%")[0])
    memset(out, 0, sizeof(sockaddr_storage))
    out.ss_family = <uint16_t>family
    if family == AF_INET:
        four.sin_port = htons(<uint16_t>port)
        memcpy(&four.sin_addr, <const char *>packed, 4)
    else:
        six.sin6_port = htons(<uint16_t>port)
        six.sin6_scope_id = scope
        memcpy(&six.sin6_addr, <const char *>packed, 16)


cdef void listen_cm(server *s, settings, sockets) except *:
    """Takes connections of rdma_cm on TCP's addresses. Leaves out an address without an RDMA device, as long as another
    address is left."""
    cdef rdma_devices *d = &s.devices
    cdef sockaddr_storage address
    cdef bint opened = False
    cdef int error
    port = settings.rdma_cm_port
    problem = "no RDMA device has a loopback address"
    for family, host, scope in choose_cm_addresses(sockets):
        fill_address(&address, family, host, port, scope)
        error = devices_listen(d, <const sockaddr *>&address, settings.backlog, &opened)
        name = f"[{host}]:{port}" if family == AF_INET6 else f"{host}:{port}"
        if error == 0:
            if settings.verbose:
                print(f"RDMA: rdma_cm takes connections on {name}", file=sys.stderr)
            continue
        if not opened:
            problem = f"/dev/infiniband/rdma_cm: {os.strerror(error)}"
            if error == ENOENT:
                problem += " (the kernel's module is rdma_ucm)"
            break
        problem = f"{name}: {os.strerror(EADDRINUSE if error == EADDRNOTAVAIL else error)}"
        if error != ENODEV:
            break
        problem = f"{name}: no RDMA device has this address"
        if settings.verbose:
            print(f"RDMA: rdma_cm: {problem}", file=sys.stderr)
    else:
        if d.nlisteners:
            d.admit = admit_cm
            d.admit_arg = s
            return
    raise ServerError(f"failed to listen on rdma_cm port {port}: {problem}", os.EX_OSERR)


cdef void setup_devices(server *s, settings, sockets, shm_path, bytes device_name) except *:
    cdef const transport_ops *transport
    cdef unsigned int number
    s.devices.limits = s.settings.rdma_limits
    s.devices.store = s.store
    s.devices.cm_port = settings.rdma_cm_port
    for number in range(<unsigned int>RDMA_DEVICES):
        transport = transport_of(number)
        # A near transport needs a place for its clients' streams, any other transport a TCP port.
        if transport.provider != NULL and (shm_path is not None if transport.near else settings.socket_path is None):
            open_own(s, number, shm_path)
    if settings.rdma_device == "none" or settings.socket_path is not None:
        return
    problem = open_system(s, settings, device_name)
    if problem is not None and settings.rdma_device:
        raise ServerError(f"RDMA: {problem}; -o rdma_device=none runs on the software devices alone")
    if settings.rdma_cm_port:
        if not s.has_system_devices:
            message = f"failed to listen on rdma_cm port {settings.rdma_cm_port}: {problem}"
            raise ServerError(message, os.EX_OSERR)
        listen_cm(s, settings, sockets)
    # A wanted rdma_cm_port is in use by now: otherwise this function has raised an error.
    lost = [name for name in of_device(settings) if name != "rdma_cm_port"]
    if problem is not None and (settings.verbose or lost):
        lost = "".join([f"; {name} has no effect" for name in lost])
        print(f"RDMA: {problem}: the software devices serve alone{lost}", file=sys.stderr)
    elif settings.verbose:
        devices_describe(&s.devices, SYSTEM_TRANSPORT)
