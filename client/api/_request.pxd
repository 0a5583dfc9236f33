"""Commands as objects: the requests of Pipeline, AsyncClient and ClusterClient, and of the meta commands.

A Request is made after the check of its arguments. Then it is put into a Stream, and its answer is taken from there.
"""

from libc.stdint cimport uint32_t

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._session cimport Session
from rmemcached.client.wire._modes cimport store_mode

cdef enum request_kind:
    REQUEST_GET
    REQUEST_GETS
    REQUEST_STORE
    REQUEST_DELETE
    REQUEST_ARITHMETIC
    REQUEST_TOUCH
    REQUEST_META


cdef class Request:
    cdef request_kind kind
    cdef bytes name              # the method's name for the caller
    cdef object key              # the caller's
    cdef bytes encoded
    cdef object default          # GET, GETS: the result of a miss
    cdef bint ignores            # with ignore_exc a failure is a miss. META: only of meta_get
    cdef bint with_flags
    cdef bint raw                # no serde is applied
    cdef bytes expire            # None: no expiry time was given, or 0
    cdef store_mode mode         # STORE
    cdef object data             # STORE, ms: the encoded value; None: the request has no value
    cdef bytes flags
    cdef bytes cas
    cdef bytes sign              # ARITHMETIC: the meta command's mode
    cdef bytes delta
    cdef bytes line              # META: the command's line; of ms, up to the value's length
    cdef object parse            # ... makes the result of the line of the answer, and the value or None
    cdef bint sized              # ... a value may follow the answer's line
    cdef bytes answered          # ... the answer's line, while its value comes
    cdef uint32_t found_flags    # GET, GETS, META: of the value found
    cdef bint found              # ... there is a value, for the serde to load
    cdef object future           # of the caller that waits for the answer, or None
    cdef object group            # or the Group that gets the result
    cdef Py_ssize_t place        # ... in its results
    cdef bint sinks              # names the Stream's sink

    # Whether anybody waits for the answer.
    cdef bint wanted(self)

# These functions check the arguments as the Client's methods do, and return a Request. default: the result of a miss;
# for REQUEST_GETS a pair, (value, CAS unique).
cdef Request get_request(Session session, request_kind kind, bytes name, object key, object default, object expire)
cdef Request store_request(Session session, store_mode mode, bytes name, object key, object value, object expire,
                           object flags, object cas)
cdef Request arithmetic_request(Session session, bytes name, object key, object value)
cdef Request touch_request(Session session, object key, object expire)
cdef Request delete_request(Session session, object key)

# Appends the request to the connection's output. The memory of its arguments must stay in place until the answer.
# MemcacheUnknownCommandError: the request is META, and the server knows no meta commands.
cdef int put_request(Connection c, Request r) except -1
# put_request for META. sink: the answer's value may come to the sink. True: the server reads the request's value from
# memory.
cdef bint put_meta(Connection c, Request r, bint sink) except -1
# The exception for a server without meta commands.
cdef object no_meta()
# Makes the result of META from the line of its answer and the value (None: there is no value). Sets r.found.
cdef object read_meta(Connection c, Request r, bytes line, bytes value)
# The result, with its value replaced by the serde's object.
cdef object load_result(Session session, Request r, object result)
# Reads the rest of the answer whose first line was just read. Returns the result, before the serde, and sets r.found.
# The exception for an error line goes to errors.
cdef object take_answer(Connection c, Request r, list errors)
