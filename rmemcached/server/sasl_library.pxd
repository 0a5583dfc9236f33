"""libsasl2 (Cyrus SASL), loaded with dlopen: the daemon starts without the library. Declarations as in <sasl/sasl.h>.

The library has no locks of its own: sasl_bind gives it pthread's. Then threads may use different connections at the
same time.
"""

cdef enum:                       # results
    SASL_CONTINUE = 1
    SASL_OK = 0
    SASL_NOMECH = -4
    SASL_NOAUTHZ = -14

cdef enum:                       # numbers of callbacks
    SASL_CB_LIST_END = 0
    SASL_CB_GETOPT = 1
    SASL_CB_LOG = 2
    SASL_CB_GETCONFPATH = 5
    SASL_CB_SERVER_USERDB_CHECKPASS = 0x8005

cdef enum:                       # levels of the log
    SASL_LOG_NONE = 0
    SASL_LOG_ERR = 1
    SASL_LOG_FAIL = 2
    SASL_LOG_WARN = 3
    SASL_LOG_PASS = 7            # has passwords

cdef struct sasl_callback:       # sasl_callback_t
    unsigned long id
    int (*proc)() noexcept nogil
    void *context

# Functions of the library. `conn` is a sasl_conn_t *.
cdef struct sasl_library:
    int (*server_init)(const sasl_callback *callbacks, const char *application) noexcept nogil
    int (*server_new)(const char *service, const char *host, const char *realm, const char *local, const char *remote,
                      const sasl_callback *callbacks, unsigned int flags, void **conn) noexcept nogil
    int (*listmech)(void *conn, const char *user, const char *prefix, const char *sep, const char *suffix,
                    const char **result, unsigned int *length, int *count) noexcept nogil
    int (*server_start)(void *conn, const char *mechanism, const char *data, unsigned int length, const char **out,
                        unsigned int *nout) noexcept nogil
    int (*server_step)(void *conn, const char *data, unsigned int length, const char **out,
                       unsigned int *nout) noexcept nogil
    const char *(*errdetail)(void *conn) noexcept nogil
    const char *(*errstring)(int result, const char *languages, const char **language) noexcept nogil
    void (*dispose)(void **conn) noexcept nogil
    void (*done)() noexcept nogil
    void (*set_mutex)(void *(*make)() noexcept nogil, int (*lock)(void *mutex) noexcept nogil,
                      int (*unlock)(void *mutex) noexcept nogil,
                      void (*free)(void *mutex) noexcept nogil) noexcept nogil

# Loads the library and fills the table; the main thread, before other threads use the library. False: the library is
# not installed, or lacks a function.
cdef bint sasl_bind(sasl_library *library) noexcept nogil
