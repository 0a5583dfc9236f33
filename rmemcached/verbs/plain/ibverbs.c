/* libibverbs.so.1 with the software devices: the provider without Python, for programs that do not know of it.
 *
 * The C unit is Cython's soft.c, with the functions of libibverbs 44 below. The linker keeps what these functions use:
 * no part of it needs Python. rmemcached-verbs preloads the library in front of the machine's libibverbs ("the next
 * library"). A call about a device of the next library, or about an object of such a device, is passed on; so is a call
 * about no device. ibverbs.map has the versions. docs/notes/rnic.md explains the binary interface.
 */
#include "rmemcached/verbs/soft.c"

#include <dlfcn.h>

#define PART(name) __pyx_f_10rmemcached_5verbs_4soft_##name
#define SOFT(name) PART(soft_##name)
#define EXPORTED __attribute__((visibility("default")))

/* The header's macros; here the functions of these names are defined. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define OURS(context) ((context)->ops.req_notify_cq == SOFT(req_notify_cq))
#define OUR_DEVICE(device) (PART(fabric_of)(device) != NULL)

/* Sets `next` to the next library's function, or to NULL. Two threads may look for it at the same time. */
#define FIND(name, version)                                                                              \
    static __typeof__(&name) found;                                                                      \
    __typeof__(&name) next = __atomic_load_n(&found, __ATOMIC_RELAXED);                                  \
    if (next == NULL) {                                                                                  \
        next = (__typeof__(&name))dlvsym(RTLD_NEXT, #name, "IBVERBS_" version);                          \
        __atomic_store_n(&found, next, __ATOMIC_RELAXED);                                                \
    }

/* A function: `ours` is its result if the condition `is_ours` holds. Else the next library has the result, for the same
 * arguments; `lacking` is the result if the next library is older than the function. */
#define CALL(type, version, name, parameters, is_ours, ours, lacking, ...)                               \
    EXPORTED type name parameters                                                                        \
    {                                                                                                    \
        if (is_ours)                                                                                     \
            return ours;                                                                                 \
        FIND(name, version)                                                                              \
        return next != NULL ? next(__VA_ARGS__) : lacking;                                               \
    }
#define ERROR(version, name, parameters, is_ours, ours, ...)                                             \
    CALL(int, version, name, parameters, is_ours, ours, EOPNOTSUPP, __VA_ARGS__)
#define OBJECT(type, version, name, parameters, is_ours, ours, ...)                                      \
    CALL(type *, version, name, parameters, is_ours, ours, unsupported(), __VA_ARGS__)
/* A function about no device. */
#define PASS(type, version, name, parameters, lacking, ...)                                              \
    CALL(type, version, name, parameters, 0, lacking, lacking, __VA_ARGS__)

/* What the devices cannot do fails as libibverbs documents it. */
static void *unsupported(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

static int unsupported_number(void)
{
    errno = EOPNOTSUPP;
    return -1;
}

static int64_t live_counts[__pyx_e_10rmemcached_3sys_5debug_LIVE_KINDS];

/* The module rmemcached.sys.debug has the counters of a debug build; there is no such module here. */
__attribute__((constructor)) static void fill_tables(void)
{
    __pyx_vp_10rmemcached_3sys_5debug_live_counts = &live_counts;
    SOFT(fill_tables)();
}

/* ---- devices ---- */

static int setting(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : 0;
}

static void show(int fd, struct ibv_device **devices, int count, const void *function)
{
    Dl_info library;
    for (int i = 0; i < count && dladdr(function, &library); i++)
        dprintf(fd, "%s: %s\n", devices[i]->name, library.dli_fname);
}

/* Ours, then the next library's, whose own list lies in front of the returned array. Where the kernel has no RDMA the
 * next library fails, and the list has our devices only. RMEMCACHED_VERBS_ONLY: without the next library's devices;
 * _VERBOSE: the descriptor for a line about each device, once. */
EXPORTED struct ibv_device **ibv_get_device_list(int *count)
{
    static int shown;
    int soft = 0, real = 0, fd = setting("RMEMCACHED_VERBS_VERBOSE");
    struct ibv_device **all = NULL, **ours = SOFT(get_device_list)(&soft), **theirs = NULL;
    FIND(ibv_get_device_list, "1.1")
    if (ours == NULL)
        return NULL;
    if (next != NULL && !setting("RMEMCACHED_VERBS_ONLY"))
        theirs = next(&real);
    all = calloc(1 + soft + real + 1, sizeof(*all));
    if (all != NULL) {
        all[0] = (struct ibv_device *)theirs;
        memcpy(all + 1, ours, soft * sizeof(*all));
        if (real)
            memcpy(all + 1 + soft, theirs, real * sizeof(*all));
        if (fd && !__atomic_exchange_n(&shown, 1, __ATOMIC_RELAXED)) {
            show(fd, ours, soft, fill_tables);
            show(fd, theirs, real, next);
        }
        if (count != NULL)
            *count = soft + real;
    }
    SOFT(free_device_list)(ours);
    return all != NULL ? all + 1 : NULL;
}

EXPORTED void ibv_free_device_list(struct ibv_device **list)
{
    struct ibv_device **all = list - 1;
    FIND(ibv_free_device_list, "1.1")
    if (all[0] != NULL)
        next((struct ibv_device **)all[0]);
    free(all);
}

EXPORTED const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

CALL(__be64, "1.1", ibv_get_device_guid, (struct ibv_device * device), OUR_DEVICE(device), SOFT(device_guid)(device), 0,
     device)
CALL(int, "1.9", ibv_get_device_index, (struct ibv_device * device), OUR_DEVICE(device), -1, -1, device)
OBJECT(struct ibv_context, "1.1", ibv_open_device, (struct ibv_device * device), OUR_DEVICE(device),
       SOFT(open_device)(device), device)
PASS(struct ibv_context *, "1.10", ibv_import_device, (int fd), unsupported(), fd)
ERROR("1.1", ibv_close_device, (struct ibv_context * context), OURS(context), SOFT(close_device)(context), context)
ERROR("1.1", ibv_query_device, (struct ibv_context * context, struct ibv_device_attr *out), OURS(context),
      SOFT(query_device)(context, out), context, out)

/* The function of programs older than verbs_context.query_port: their structure ends before `flags`. */
static int query_port_head(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
    return SOFT(query_port_ex)(context, port, (struct ibv_port_attr *)out, offsetof(struct ibv_port_attr, flags));
}

ERROR("1.1", ibv_query_port, (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr *out),
      OURS(context), query_port_head(context, port, out), context, port, out)

/* ---- addresses ---- */

CALL(int, "1.1", ibv_query_gid, (struct ibv_context * context, uint8_t port, int index, union ibv_gid *out),
     OURS(context), SOFT(query_gid)(context, port, index, out), unsupported_number(), context, port, index, out)
CALL(int, "1.1", ibv_query_pkey, (struct ibv_context * context, uint8_t port, int index, __be16 *out), OURS(context),
     SOFT(query_pkey)(context, port, index, out), unsupported_number(), context, port, index, out)

static int pkey_index(struct ibv_context *context, uint8_t port, __be16 key)
{
    __be16 only;
    if (SOFT(query_pkey)(context, port, 0, &only) != 0 || only != key)
        return -1;
    return 0;
}

CALL(int, "1.5", ibv_get_pkey_index, (struct ibv_context * context, uint8_t port, __be16 key), OURS(context),
     pkey_index(context, port, key), -1, context, port, key)

static int is_roce(const struct ibv_context *context)
{
    return context->device->node_type == IBV_NODE_CA;
}

/* The caller's structure has `size` octets: fewer than ours in older programs, more in newer. */
static int gid_entry(struct ibv_context *context, uint32_t port, uint32_t index, void *out, uint32_t flags, size_t size)
{
    struct ibv_gid_entry found = {.gid_index = index, .port_num = port};
    if (flags != 0 || port > UINT8_MAX || index > INT_MAX)
        return EINVAL;
    if (SOFT(query_gid)(context, port, index, &found.gid) != 0)
        return errno;
    found.gid_type = is_roce(context) ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
    memset(out, 0, size);
    memcpy(out, &found, size < sizeof(found) ? size : sizeof(found));
    return 0;
}

static ssize_t gid_table(struct ibv_context *context, char *out, size_t room, uint32_t flags, size_t size)
{
    struct ibv_port_attr port;
    size_t count = 0;
    int error = SOFT(query_port)(context, 1, &port);
    for (int i = 0; error == 0 && i < port.gid_tbl_len; i++) {
        error = count < room ? gid_entry(context, 1, i, out + count * size, flags, size) : EINVAL;
        count++;
    }
    return error ? -error : (ssize_t)count;
}

ERROR("1.11", _ibv_query_gid_ex,
      (struct ibv_context * context, uint32_t port, uint32_t index, struct ibv_gid_entry *out, uint32_t flags,
       size_t size),
      OURS(context), gid_entry(context, port, index, out, flags, size), context, port, index, out, flags, size)
CALL(ssize_t, "1.11", _ibv_query_gid_table,
     (struct ibv_context * context, struct ibv_gid_entry *out, size_t room, uint32_t flags, size_t size), OURS(context),
     gid_table(context, (char *)out, room, flags, size), -EOPNOTSUPP, context, out, room, flags, size)

/* Of libibverbs' private functions we have this one, under the private version of every release: libmlx5 and pyverbs
 * call it for any context. *type: 0 is InfiniBand, iWARP or RoCE v1, 1 is RoCE v2. */
static int query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type)
{
    static __typeof__(&query_gid_type) found;
    __typeof__(&query_gid_type) next = __atomic_load_n(&found, __ATOMIC_RELAXED);
    union ibv_gid gid;
    if (OURS(context)) {
        *type = is_roce(context);
        return SOFT(query_gid)(context, port, index, &gid);
    }
    for (int i = 14; next == NULL && i <= 90; i++) {
        char version[32];
        snprintf(version, sizeof(version), "IBVERBS_PRIVATE_%d", i);
        next = (__typeof__(next))dlvsym(RTLD_NEXT, "ibv_query_gid_type", version);
    }
    __atomic_store_n(&found, next, __ATOMIC_RELAXED);
    return next != NULL ? next(context, port, index, type) : unsupported_number();
}

#define GID_TYPE(n)                                                                                      \
    EXPORTED int rmc_gid_type_##n(struct ibv_context *, uint8_t, unsigned int, unsigned int *)           \
        __attribute__((alias("query_gid_type")));                                                        \
    __asm__(".symver rmc_gid_type_" #n ", ibv_query_gid_type@IBVERBS_PRIVATE_" #n);
#define TEN(d)                                                                                           \
    GID_TYPE(d##0) GID_TYPE(d##1) GID_TYPE(d##2) GID_TYPE(d##3) GID_TYPE(d##4) GID_TYPE(d##5)            \
    GID_TYPE(d##6) GID_TYPE(d##7) GID_TYPE(d##8) GID_TYPE(d##9)
GID_TYPE(14) GID_TYPE(15) GID_TYPE(16) GID_TYPE(17) GID_TYPE(18) GID_TYPE(19)
TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) GID_TYPE(90)

/* ---- asynchronous events ---- */

CALL(int, "1.1", ibv_get_async_event, (struct ibv_context * context, struct ibv_async_event *event), OURS(context),
     SOFT(get_async_event)(context, event), unsupported_number(), context, event)

/* The context of the event's object. NULL: the event is about the device or a port, and is acknowledged nowhere. */
static struct ibv_context *event_context(const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        return event->element.cq->context;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return event->element.srq->context;
    case IBV_EVENT_WQ_FATAL:
        return event->element.wq->context;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return event->element.qp->context;
    default:
        return NULL;
    }
}

EXPORTED void ibv_ack_async_event(struct ibv_async_event *event)
{
    const struct ibv_context *context = event_context(event);
    FIND(ibv_ack_async_event, "1.1")
    if (context == NULL)
        return;
    if (OURS(context))
        SOFT(ack_async_event)(event);
    else if (next != NULL)
        next(event);
}

/* ---- protection domains and memory ---- */

OBJECT(struct ibv_pd, "1.1", ibv_alloc_pd, (struct ibv_context * context), OURS(context), SOFT(alloc_pd)(context),
       context)
ERROR("1.1", ibv_dealloc_pd, (struct ibv_pd * pd), OURS(pd->context), SOFT(dealloc_pd)(pd), pd)
OBJECT(struct ibv_mr, "1.1", ibv_reg_mr, (struct ibv_pd * pd, void *addr, size_t length, int access), OURS(pd->context),
       SOFT(reg_mr)(pd, addr, length, access), pd, addr, length, access)

OBJECT(struct ibv_mr, "1.7", ibv_reg_mr_iova,
       (struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, int access), OURS(pd->context),
       SOFT(reg_mr_iova)(pd, addr, length, iova, access), pd, addr, length, iova, access)
OBJECT(struct ibv_mr, "1.8", ibv_reg_mr_iova2,
       (struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, unsigned int access), OURS(pd->context),
       SOFT(reg_mr_iova)(pd, addr, length, iova, access), pd, addr, length, iova, access)
OBJECT(struct ibv_mr, "1.12", ibv_reg_dmabuf_mr,
       (struct ibv_pd * pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access), OURS(pd->context),
       unsupported(), pd, offset, length, iova, fd, access)
CALL(int, "1.1", ibv_rereg_mr,
     (struct ibv_mr * mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access), OURS(mr->context),
     SOFT(rereg_mr)(mr, flags, pd, addr, length, access), (errno = EOPNOTSUPP, IBV_REREG_MR_ERR_INPUT), mr, flags, pd,
     addr, length, access)
ERROR("1.1", ibv_dereg_mr, (struct ibv_mr * mr), OURS(mr->context), SOFT(dereg_mr)(mr), mr)
OBJECT(struct ibv_pd, "1.10", ibv_import_pd, (struct ibv_context * context, uint32_t handle), OURS(context),
       unsupported(), context, handle)
OBJECT(struct ibv_mr, "1.10", ibv_import_mr, (struct ibv_pd * pd, uint32_t handle), OURS(pd->context), unsupported(),
       pd, handle)
OBJECT(struct ibv_dm, "1.13", ibv_import_dm, (struct ibv_context * context, uint32_t handle), OURS(context),
       unsupported(), context, handle)

/* Nothing of ours was ever imported. */
#define UNIMPORT(version, name, type)                                                                    \
    EXPORTED void name(type *object)                                                                     \
    {                                                                                                    \
        FIND(name, version)                                                                              \
        if (!OURS(object->context) && next != NULL)                                                      \
            next(object);                                                                                \
    }
UNIMPORT("1.10", ibv_unimport_pd, struct ibv_pd)
UNIMPORT("1.10", ibv_unimport_mr, struct ibv_mr)
UNIMPORT("1.13", ibv_unimport_dm, struct ibv_dm)

/* ---- completions ---- */

OBJECT(struct ibv_comp_channel, "1.0", ibv_create_comp_channel, (struct ibv_context * context), OURS(context),
       SOFT(create_comp_channel)(context), context)
ERROR("1.0", ibv_destroy_comp_channel, (struct ibv_comp_channel * channel), OURS(channel->context),
      SOFT(destroy_comp_channel)(channel), channel)
OBJECT(struct ibv_cq, "1.1", ibv_create_cq,
       (struct ibv_context * context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector),
       OURS(context), SOFT(create_cq)(context, cqe, cq_context, channel, vector), context, cqe, cq_context, channel,
       vector)
ERROR("1.1", ibv_resize_cq, (struct ibv_cq * cq, int cqe), OURS(cq->context), SOFT(resize_cq)(cq, cqe), cq, cqe)
ERROR("1.1", ibv_destroy_cq, (struct ibv_cq * cq), OURS(cq->context), SOFT(destroy_cq)(cq), cq)
CALL(int, "1.1", ibv_get_cq_event, (struct ibv_comp_channel * channel, struct ibv_cq **cq, void **cq_context),
     OURS(channel->context), SOFT(get_cq_event)(channel, cq, cq_context), unsupported_number(), channel, cq, cq_context)

EXPORTED void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    FIND(ibv_ack_cq_events, "1.1")
    if (OURS(cq->context))
        SOFT(ack_cq_events)(cq, count);
    else if (next != NULL)
        next(cq, count);
}

/* ---- queue pairs and shared receive queues ---- */

OBJECT(struct ibv_srq, "1.1", ibv_create_srq, (struct ibv_pd * pd, struct ibv_srq_init_attr *init), OURS(pd->context),
       SOFT(create_srq)(pd, init), pd, init)
ERROR("1.1", ibv_modify_srq, (struct ibv_srq * srq, struct ibv_srq_attr *attr, int mask), OURS(srq->context),
      SOFT(modify_srq)(srq, attr, mask), srq, attr, mask)
ERROR("1.1", ibv_query_srq, (struct ibv_srq * srq, struct ibv_srq_attr *attr), OURS(srq->context),
      SOFT(query_srq)(srq, attr), srq, attr)
ERROR("1.1", ibv_destroy_srq, (struct ibv_srq * srq), OURS(srq->context), SOFT(destroy_srq)(srq), srq)
OBJECT(struct ibv_qp, "1.1", ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr *init), OURS(pd->context),
       SOFT(create_qp)(pd, init), pd, init)
ERROR("1.1", ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr *attr, int mask), OURS(qp->context),
      SOFT(modify_qp)(qp, attr, mask), qp, attr, mask)
ERROR("1.1", ibv_query_qp, (struct ibv_qp * qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init),
      OURS(qp->context), SOFT(query_qp)(qp, attr, mask, init), qp, attr, mask, init)
ERROR("1.1", ibv_destroy_qp, (struct ibv_qp * qp), OURS(qp->context), SOFT(destroy_qp)(qp), qp)
CALL(struct ibv_qp_ex *, "1.6", ibv_qp_to_qp_ex, (struct ibv_qp * qp), OURS(qp->context), NULL, NULL, qp)
CALL(int, "1.14", ibv_query_qp_data_in_order, (struct ibv_qp * qp, enum ibv_wr_opcode opcode, uint32_t flags),
     OURS(qp->context), 0, 0, qp, opcode, flags)
ERROR("1.10", ibv_set_ece, (struct ibv_qp * qp, struct ibv_ece *ece), OURS(qp->context), EOPNOTSUPP, qp, ece)
ERROR("1.10", ibv_query_ece, (struct ibv_qp * qp, struct ibv_ece *ece), OURS(qp->context), EOPNOTSUPP, qp, ece)

/* ---- datagrams ---- */

OBJECT(struct ibv_ah, "1.1", ibv_create_ah, (struct ibv_pd * pd, struct ibv_ah_attr *attr), OURS(pd->context),
       unsupported(), pd, attr)
ERROR("1.1", ibv_init_ah_from_wc,
      (struct ibv_context * context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr),
      OURS(context), EOPNOTSUPP, context, port, wc, grh, attr)
OBJECT(struct ibv_ah, "1.1", ibv_create_ah_from_wc,
       (struct ibv_pd * pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port), OURS(pd->context), unsupported(), pd,
       wc, grh, port)
ERROR("1.1", ibv_destroy_ah, (struct ibv_ah * ah), OURS(ah->context), EOPNOTSUPP, ah)
ERROR("1.1", ibv_attach_mcast, (struct ibv_qp * qp, const union ibv_gid *gid, uint16_t lid), OURS(qp->context),
      EOPNOTSUPP, qp, gid, lid)
ERROR("1.1", ibv_detach_mcast, (struct ibv_qp * qp, const union ibv_gid *gid, uint16_t lid), OURS(qp->context),
      EOPNOTSUPP, qp, gid, lid)
ERROR("1.1", ibv_resolve_eth_l2_from_gid,
      (struct ibv_context * context, struct ibv_ah_attr *attr, uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid),
      OURS(context), EOPNOTSUPP, context, attr, mac, vid)

/* ---- about no device ---- */

/* Our devices need no preparation for a fork. */
PASS(int, "1.1", ibv_fork_init, (void), 0)
PASS(enum ibv_fork_status, "1.13", ibv_is_fork_initialized, (void), IBV_FORK_UNNEEDED)
PASS(int, "1.1", ibv_dontfork_range, (void *base, size_t size), 0, base, size)
PASS(int, "1.1", ibv_dofork_range, (void *base, size_t size), 0, base, size)
PASS(const char *, "1.1", ibv_wc_status_str, (enum ibv_wc_status status), SOFT(wc_status_str)(status), status)
PASS(const char *, "1.1", ibv_event_type_str, (enum ibv_event_type event), SOFT(event_type_str)(event), event)
PASS(const char *, "1.1", ibv_node_type_str, (enum ibv_node_type type), "unknown", type)
PASS(const char *, "1.1", ibv_port_state_str, (enum ibv_port_state state), "unknown", state)
PASS(int, "1.0", ibv_rate_to_mult, (enum ibv_rate rate), -1, rate)
PASS(enum ibv_rate, "1.0", mult_to_ibv_rate, (int mult), IBV_RATE_MAX, mult)
PASS(int, "1.1", ibv_rate_to_mbps, (enum ibv_rate rate), -1, rate)
PASS(enum ibv_rate, "1.1", mbps_to_ibv_rate, (int mbps), IBV_RATE_MAX, mbps)
PASS(const char *, "1.0", ibv_get_sysfs_path, (void), "/sys")
PASS(int, "1.0", ibv_read_sysfs_file, (const char *folder, const char *file, char *out, size_t size),
     unsupported_number(), folder, file, out, size)

/* librdmacm's, on structures of the kernel. */
#define COPY(version, name)                                                                              \
    EXPORTED void name(void *to, void *from)                                                             \
    {                                                                                                    \
        FIND(name, version)                                                                              \
        if (next != NULL)                                                                                \
            next(to, from);                                                                              \
    }
COPY("1.0", ibv_copy_qp_attr_from_kern)
COPY("1.0", ibv_copy_path_rec_from_kern)
COPY("1.0", ibv_copy_path_rec_to_kern)
COPY("1.1", ibv_copy_ah_attr_from_kern)
