"""The lock of the client's shared objects, in a Python without the GIL. In a Python with the GIL, which protects the
same objects, the functions of the lock do nothing.

Its holder may take the lock again. A holder that must wait gives the lock up meanwhile, like the GIL (suspend_state). A
forked child begins with a free lock.
"""

from cpython.object cimport PyObject

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    typedef struct {
        PyMutex mutex;
        unsigned long holder;  /* a thread; 0: nobody */
        unsigned int depth;
    } client_state;

    static inline int holds_state(client_state *state) {
        return __atomic_load_n(&state->holder, __ATOMIC_RELAXED) == PyThread_get_thread_ident();
    }

    static inline void resume_state(client_state *state, unsigned int depth) {
        if (depth == 0)
            return;
        PyMutex_Lock(&state->mutex);
        __atomic_store_n(&state->holder, PyThread_get_thread_ident(), __ATOMIC_RELAXED);
        state->depth = depth;
    }

    static inline unsigned int suspend_state(client_state *state) {
        unsigned int depth;
        if (!holds_state(state))
            return 0;
        depth = state->depth;
        state->depth = 0;
        __atomic_store_n(&state->holder, 0, __ATOMIC_RELAXED);
        PyMutex_Unlock(&state->mutex);
        return depth;
    }

    static inline void lock_state(client_state *state) {
        if (holds_state(state))
            state->depth++;
        else
            resume_state(state, 1);
    }

    static inline void unlock_state(client_state *state) {
        if (--state->depth == 0) {
            state->depth = 1;
            suspend_state(state);
        }
    }

    /* A new reference to an object whose last reference another thread may be giving up; NULL: the object ends. */
    static inline PyObject *live_object(PyObject *object, PyObject *weak) {
        PyObject *found = NULL;
        if (PyWeakref_GetRef(weak, &found) < 0)
            PyErr_Clear();
        return found;
    }
    #else
    typedef struct {
        char nothing;
    } client_state;

    #define lock_state(state) ((void)0)
    #define unlock_state(state) ((void)0)
    #define suspend_state(state) 0
    #define resume_state(state, depth) ((void)(depth))
    #define live_object(object, weak) Py_NewRef((PyObject *)(object))
    #endif
    """
    ctypedef struct client_state:
        pass
    void lock_state(client_state *state) noexcept
    void unlock_state(client_state *state) noexcept
    # Gives the lock up before a wait. Returns how often this thread had taken the lock, for resume_state after the
    # wait. 0: the thread did not hold the lock.
    unsigned int suspend_state(client_state *state) noexcept
    void resume_state(client_state *state, unsigned int depth) noexcept
    # For the list of Buffers (_buffers.pyx), which has no references to its members. weak: a weak reference.
    PyObject *live_object(void *object, void *weak) noexcept

# The lock of all shared objects of the process.
cdef client_state shared_state
