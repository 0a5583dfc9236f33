"""The verbs interface: libibverbs' own types, and the table of control calls that each provider fills.

Only this file declares names of <infiniband/verbs.h>. The library itself is not linked. Control calls go through a
`verbs_provider`. Data calls (`ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq`, `ibv_req_notify_cq`) are the header's
inline functions, which go through `context->ops`.

Arguments, results and thread-safety are those of libibverbs. Failures, in all of rmemcached/verbs: an int is 0 or an
errno value, a pointer is NULL, and errno says why. A header or a comment names the exceptions: a descriptor or number
is -1, with errno, as in system calls; a parser of a peer's octets returns 1 (whole), 0 (more are needed) or -1 (wrong).
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "<infiniband/verbs.h>" nogil:
    enum ibv_node_type:
        IBV_NODE_UNKNOWN
        IBV_NODE_CA
        IBV_NODE_RNIC

    enum ibv_transport_type:
        IBV_TRANSPORT_UNKNOWN
        IBV_TRANSPORT_IB
        IBV_TRANSPORT_IWARP

    enum ibv_atomic_cap:
        IBV_ATOMIC_NONE
        IBV_ATOMIC_HCA
        IBV_ATOMIC_GLOB

    enum ibv_device_cap_flags:
        IBV_DEVICE_CURR_QP_STATE_MOD
        IBV_DEVICE_SRQ_RESIZE
        IBV_DEVICE_MEM_MGT_EXTENSIONS
        IBV_DEVICE_MEM_WINDOW
        IBV_DEVICE_MEM_WINDOW_TYPE_2B

    enum ibv_mtu:
        IBV_MTU_256
        IBV_MTU_512
        IBV_MTU_1024
        IBV_MTU_2048
        IBV_MTU_4096

    enum ibv_port_state:
        IBV_PORT_NOP
        IBV_PORT_DOWN
        IBV_PORT_INIT
        IBV_PORT_ARMED
        IBV_PORT_ACTIVE

    enum:
        IBV_LINK_LAYER_UNSPECIFIED
        IBV_LINK_LAYER_INFINIBAND
        IBV_LINK_LAYER_ETHERNET

    enum ibv_access_flags:
        IBV_ACCESS_LOCAL_WRITE
        IBV_ACCESS_REMOTE_WRITE
        IBV_ACCESS_REMOTE_READ
        IBV_ACCESS_REMOTE_ATOMIC
        IBV_ACCESS_MW_BIND
        IBV_ACCESS_ZERO_BASED
        IBV_ACCESS_ON_DEMAND
        IBV_ACCESS_HUGETLB
        IBV_ACCESS_RELAXED_ORDERING

    enum:
        IBV_ACCESS_OPTIONAL_RANGE

    enum ibv_rereg_mr_flags:
        IBV_REREG_MR_CHANGE_TRANSLATION
        IBV_REREG_MR_CHANGE_PD
        IBV_REREG_MR_CHANGE_ACCESS
        IBV_REREG_MR_FLAGS_SUPPORTED

    enum ibv_rereg_mr_err_code:
        IBV_REREG_MR_ERR_INPUT

    enum ibv_qp_type:
        IBV_QPT_RC
        IBV_QPT_UC
        IBV_QPT_UD

    enum ibv_qp_state:
        IBV_QPS_RESET
        IBV_QPS_INIT
        IBV_QPS_RTR
        IBV_QPS_RTS
        IBV_QPS_SQD
        IBV_QPS_SQE
        IBV_QPS_ERR
        IBV_QPS_UNKNOWN

    enum ibv_mig_state:
        IBV_MIG_MIGRATED
        IBV_MIG_REARM
        IBV_MIG_ARMED

    enum ibv_qp_attr_mask:
        IBV_QP_STATE
        IBV_QP_CUR_STATE
        IBV_QP_EN_SQD_ASYNC_NOTIFY
        IBV_QP_ACCESS_FLAGS
        IBV_QP_PKEY_INDEX
        IBV_QP_PORT
        IBV_QP_QKEY
        IBV_QP_AV
        IBV_QP_PATH_MTU
        IBV_QP_TIMEOUT
        IBV_QP_RETRY_CNT
        IBV_QP_RNR_RETRY
        IBV_QP_RQ_PSN
        IBV_QP_MAX_QP_RD_ATOMIC
        IBV_QP_ALT_PATH
        IBV_QP_MIN_RNR_TIMER
        IBV_QP_SQ_PSN
        IBV_QP_MAX_DEST_RD_ATOMIC
        IBV_QP_PATH_MIG_STATE
        IBV_QP_CAP
        IBV_QP_DEST_QPN
        IBV_QP_RATE_LIMIT

    enum ibv_wr_opcode:
        IBV_WR_RDMA_WRITE
        IBV_WR_RDMA_WRITE_WITH_IMM
        IBV_WR_SEND
        IBV_WR_SEND_WITH_IMM
        IBV_WR_RDMA_READ
        IBV_WR_ATOMIC_CMP_AND_SWP
        IBV_WR_ATOMIC_FETCH_AND_ADD
        IBV_WR_LOCAL_INV
        IBV_WR_BIND_MW
        IBV_WR_SEND_WITH_INV

    enum ibv_send_flags:
        IBV_SEND_FENCE
        IBV_SEND_SIGNALED
        IBV_SEND_SOLICITED
        IBV_SEND_INLINE
        IBV_SEND_IP_CSUM

    enum ibv_wc_status:
        IBV_WC_SUCCESS
        IBV_WC_LOC_LEN_ERR
        IBV_WC_LOC_QP_OP_ERR
        IBV_WC_LOC_EEC_OP_ERR
        IBV_WC_LOC_PROT_ERR
        IBV_WC_WR_FLUSH_ERR
        IBV_WC_MW_BIND_ERR
        IBV_WC_BAD_RESP_ERR
        IBV_WC_LOC_ACCESS_ERR
        IBV_WC_REM_INV_REQ_ERR
        IBV_WC_REM_ACCESS_ERR
        IBV_WC_REM_OP_ERR
        IBV_WC_RETRY_EXC_ERR
        IBV_WC_RNR_RETRY_EXC_ERR
        IBV_WC_LOC_RDD_VIOL_ERR
        IBV_WC_REM_INV_RD_REQ_ERR
        IBV_WC_REM_ABORT_ERR
        IBV_WC_INV_EECN_ERR
        IBV_WC_INV_EEC_STATE_ERR
        IBV_WC_FATAL_ERR
        IBV_WC_RESP_TIMEOUT_ERR
        IBV_WC_GENERAL_ERR

    enum ibv_wc_opcode:
        IBV_WC_SEND
        IBV_WC_RDMA_WRITE
        IBV_WC_RDMA_READ
        IBV_WC_COMP_SWAP
        IBV_WC_FETCH_ADD
        IBV_WC_BIND_MW
        IBV_WC_LOCAL_INV
        IBV_WC_RECV
        IBV_WC_RECV_RDMA_WITH_IMM

    enum ibv_wc_flags:
        IBV_WC_GRH
        IBV_WC_WITH_IMM
        IBV_WC_WITH_INV

    enum ibv_event_type:
        IBV_EVENT_CQ_ERR
        IBV_EVENT_QP_FATAL
        IBV_EVENT_QP_REQ_ERR
        IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED
        IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR
        IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED
        IBV_EVENT_QP_LAST_WQE_REACHED
        IBV_EVENT_LID_CHANGE
        IBV_EVENT_PKEY_CHANGE
        IBV_EVENT_SM_CHANGE
        IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE

    enum ibv_srq_attr_mask:
        IBV_SRQ_MAX_WR
        IBV_SRQ_LIMIT

    union ibv_gid:
        uint8_t raw[16]

    struct ibv_device:
        ibv_node_type node_type
        ibv_transport_type transport_type
        char name[64]
        char dev_name[64]
        char dev_path[256]
        char ibdev_path[256]

    struct ibv_device_attr:
        char fw_ver[64]
        uint64_t node_guid           # big-endian
        uint64_t sys_image_guid      # big-endian
        uint64_t max_mr_size
        uint64_t page_size_cap
        uint32_t vendor_id
        uint32_t vendor_part_id
        uint32_t hw_ver
        int max_qp
        int max_qp_wr
        unsigned int device_cap_flags
        int max_sge
        int max_sge_rd
        int max_cq
        int max_cqe
        int max_mr
        int max_pd
        int max_qp_rd_atom
        int max_ee_rd_atom
        int max_res_rd_atom
        int max_qp_init_rd_atom
        int max_ee_init_rd_atom
        ibv_atomic_cap atomic_cap
        int max_mw
        int max_ah
        int max_srq
        int max_srq_wr
        int max_srq_sge
        uint16_t max_pkeys
        uint8_t local_ca_ack_delay
        uint8_t phys_port_cnt

    struct ibv_port_attr:
        ibv_port_state state
        ibv_mtu max_mtu
        ibv_mtu active_mtu
        int gid_tbl_len
        uint32_t port_cap_flags
        uint32_t max_msg_sz
        uint32_t bad_pkey_cntr
        uint32_t qkey_viol_cntr
        uint16_t pkey_tbl_len
        uint16_t lid
        uint16_t sm_lid
        uint8_t lmc
        uint8_t max_vl_num
        uint8_t sm_sl
        uint8_t subnet_timeout
        uint8_t init_type_reply
        uint8_t active_width
        uint8_t active_speed
        uint8_t phys_state
        uint8_t link_layer
        uint8_t flags

    struct ibv_pd:
        ibv_context *context
        uint32_t handle

    struct ibv_mr:
        ibv_context *context
        ibv_pd *pd
        void *addr
        size_t length
        uint32_t handle
        uint32_t lkey
        uint32_t rkey

    enum ibv_mw_type:
        IBV_MW_TYPE_1
        IBV_MW_TYPE_2

    struct ibv_mw:
        ibv_context *context
        ibv_pd *pd
        uint32_t rkey
        uint32_t handle
        ibv_mw_type type

    struct ibv_mw_bind_info:
        ibv_mr *mr
        uint64_t addr
        uint64_t length
        unsigned int mw_access_flags

    struct ibv_mw_bind:
        uint64_t wr_id
        unsigned int send_flags
        ibv_mw_bind_info bind_info

    struct ibv_comp_channel:
        ibv_context *context
        int fd
        int refcnt

    struct ibv_cq:
        ibv_context *context
        ibv_comp_channel *channel
        void *cq_context
        uint32_t handle
        int cqe
        uint32_t comp_events_completed
        uint32_t async_events_completed

    struct ibv_srq:
        ibv_context *context
        void *srq_context
        ibv_pd *pd
        uint32_t handle
        uint32_t events_completed

    struct ibv_srq_attr:
        uint32_t max_wr
        uint32_t max_sge
        uint32_t srq_limit

    struct ibv_srq_init_attr:
        void *srq_context
        ibv_srq_attr attr

    struct ibv_qp:
        ibv_context *context
        void *qp_context
        ibv_pd *pd
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_srq *srq
        uint32_t handle
        uint32_t qp_num
        ibv_qp_state state
        ibv_qp_type qp_type
        uint32_t events_completed

    struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data

    struct ibv_qp_init_attr:
        void *qp_context
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_srq *srq
        ibv_qp_cap cap
        ibv_qp_type qp_type
        int sq_sig_all

    struct ibv_global_route:
        ibv_gid dgid
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class

    struct ibv_ah_attr:
        ibv_global_route grh
        uint16_t dlid
        uint8_t sl
        uint8_t src_path_bits
        uint8_t static_rate
        uint8_t is_global
        uint8_t port_num

    struct ibv_qp_attr:
        ibv_qp_state qp_state
        ibv_qp_state cur_qp_state
        ibv_mtu path_mtu
        ibv_mig_state path_mig_state
        uint32_t qkey
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        unsigned int qp_access_flags
        ibv_qp_cap cap
        ibv_ah_attr ah_attr
        ibv_ah_attr alt_ah_attr
        uint16_t pkey_index
        uint16_t alt_pkey_index
        uint8_t en_sqd_async_notify
        uint8_t sq_draining
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry
        uint8_t alt_port_num
        uint8_t alt_timeout
        uint32_t rate_limit

    struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey

    struct ibv_send_wr_rdma:         # exists only as wr.rdma of ibv_send_wr
        uint64_t remote_addr
        uint32_t rkey

    struct ibv_send_wr_atomic:       # exists only as wr.atomic of ibv_send_wr
        uint64_t remote_addr
        uint64_t compare_add
        uint64_t swap
        uint32_t rkey

    union ibv_send_wr_wr:            # exists only as wr of ibv_send_wr
        ibv_send_wr_rdma rdma
        ibv_send_wr_atomic atomic

    struct ibv_send_wr_bind_mw:      # exists only as bind_mw of ibv_send_wr
        ibv_mw *mw
        uint32_t rkey
        ibv_mw_bind_info bind_info

    struct ibv_send_wr:
        uint64_t wr_id
        ibv_send_wr *next
        ibv_sge *sg_list
        int num_sge
        ibv_wr_opcode opcode
        unsigned int send_flags
        uint32_t imm_data            # big-endian; in a union with invalidate_rkey
        uint32_t invalidate_rkey
        ibv_send_wr_wr wr
        ibv_send_wr_bind_mw bind_mw

    union ibv_async_event_element:   # exists only as element of ibv_async_event
        ibv_cq *cq
        ibv_qp *qp
        ibv_srq *srq
        int port_num

    struct ibv_async_event:
        ibv_async_event_element element
        ibv_event_type event_type

    struct ibv_recv_wr:
        uint64_t wr_id
        ibv_recv_wr *next
        ibv_sge *sg_list
        int num_sge

    struct ibv_wc:
        uint64_t wr_id
        ibv_wc_status status
        ibv_wc_opcode opcode
        uint32_t vendor_err
        uint32_t byte_len
        uint32_t imm_data            # big-endian; in a union with invalidated_rkey
        uint32_t invalidated_rkey
        uint32_t qp_num
        uint32_t src_qp
        unsigned int wc_flags
        uint16_t pkey_index
        uint16_t slid
        uint8_t sl
        uint8_t dlid_path_bits

    struct ibv_context_ops:
        ibv_mw *(*alloc_mw)(ibv_pd *pd, ibv_mw_type type) noexcept nogil
        int (*bind_mw)(ibv_qp *qp, ibv_mw *mw, ibv_mw_bind *mw_bind) noexcept nogil
        int (*dealloc_mw)(ibv_mw *mw) noexcept nogil
        int (*poll_cq)(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept nogil
        int (*req_notify_cq)(ibv_cq *cq, int solicited_only) noexcept nogil
        int (*post_send)(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept nogil
        int (*post_recv)(ibv_qp *qp, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil
        int (*post_srq_recv)(ibv_srq *srq, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept nogil

    struct ibv_context:
        ibv_device *device
        ibv_context_ops ops
        int cmd_fd
        int async_fd
        int num_comp_vectors
        void *abi_compat             # all ones: the context is within a verbs_context

    struct ibv_query_device_ex_input:
        uint32_t comp_mask

    struct ibv_device_attr_ex:
        ibv_device_attr orig_attr
        uint32_t phys_port_cnt_ex

    # Around each context. The structure grows at its front, so `sz` tells programs of the functions in front of it.
    struct verbs_context:
        int (*query_port)(ibv_context *context, uint8_t port_num, ibv_port_attr *out, size_t size) noexcept nogil
        int (*query_device_ex)(ibv_context *context, const ibv_query_device_ex_input *extra, ibv_device_attr_ex *out,
                               size_t size) noexcept nogil
        size_t sz
        ibv_context context          # the last field

    # NULL, or an errno value, also for a device without memory windows.
    ibv_mw *ibv_alloc_mw(ibv_pd *pd, ibv_mw_type type) noexcept
    int ibv_bind_mw(ibv_qp *qp, ibv_mw *mw, ibv_mw_bind *mw_bind) noexcept
    int ibv_dealloc_mw(ibv_mw *mw) noexcept

    # Number of completions stored in wc (0 to num_entries), negative on failure.
    int ibv_poll_cq(ibv_cq *cq, int num_entries, ibv_wc *wc) noexcept
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only) noexcept
    int ibv_post_send(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad_wr) noexcept
    int ibv_post_recv(ibv_qp *qp, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept
    int ibv_post_srq_recv(ibv_srq *srq, ibv_recv_wr *wr, ibv_recv_wr **bad_wr) noexcept


cdef struct verbs_provider:
    const char *name                 # "soft", "system"

    ibv_device **(*get_device_list)(int *num_devices) noexcept nogil
    void (*free_device_list)(ibv_device **devices) noexcept nogil
    const char *(*get_device_name)(ibv_device *device) noexcept nogil
    ibv_context *(*open_device)(ibv_device *device) noexcept nogil
    int (*close_device)(ibv_context *context) noexcept nogil

    int (*query_device)(ibv_context *context, ibv_device_attr *out) noexcept nogil
    int (*query_port)(ibv_context *context, uint8_t port_num, ibv_port_attr *out) noexcept nogil
    # 0, or -1 and errno
    int (*query_gid)(ibv_context *context, uint8_t port_num, int index, ibv_gid *out) noexcept nogil
    # 0, or -1 and errno; the key is big-endian
    int (*query_pkey)(ibv_context *context, uint8_t port_num, int index, uint16_t *out) noexcept nogil
    # 0, or -1 and errno: EAGAIN with O_NONBLOCK set on context.async_fd
    int (*get_async_event)(ibv_context *context, ibv_async_event *event) noexcept nogil
    void (*ack_async_event)(ibv_async_event *event) noexcept nogil

    ibv_pd *(*alloc_pd)(ibv_context *context) noexcept nogil
    int (*dealloc_pd)(ibv_pd *pd) noexcept nogil
    ibv_mr *(*reg_mr)(ibv_pd *pd, void *addr, size_t length, int access) noexcept nogil
    int (*dereg_mr)(ibv_mr *mr) noexcept nogil

    ibv_comp_channel *(*create_comp_channel)(ibv_context *context) noexcept nogil
    int (*destroy_comp_channel)(ibv_comp_channel *channel) noexcept nogil
    ibv_cq *(*create_cq)(ibv_context *context, int cqe, void *cq_context, ibv_comp_channel *channel,
                         int comp_vector) noexcept nogil
    int (*resize_cq)(ibv_cq *cq, int cqe) noexcept nogil
    int (*destroy_cq)(ibv_cq *cq) noexcept nogil
    # 0, or -1 and errno
    int (*get_cq_event)(ibv_comp_channel *channel, ibv_cq **cq, void **cq_context) noexcept nogil
    void (*ack_cq_events)(ibv_cq *cq, unsigned int nevents) noexcept nogil

    ibv_srq *(*create_srq)(ibv_pd *pd, ibv_srq_init_attr *init) noexcept nogil
    int (*modify_srq)(ibv_srq *srq, ibv_srq_attr *attr, int attr_mask) noexcept nogil
    int (*query_srq)(ibv_srq *srq, ibv_srq_attr *attr) noexcept nogil
    int (*destroy_srq)(ibv_srq *srq) noexcept nogil

    ibv_qp *(*create_qp)(ibv_pd *pd, ibv_qp_init_attr *init) noexcept nogil
    int (*modify_qp)(ibv_qp *qp, ibv_qp_attr *attr, int attr_mask) noexcept nogil
    int (*query_qp)(ibv_qp *qp, ibv_qp_attr *attr, int attr_mask, ibv_qp_init_attr *init) noexcept nogil
    int (*destroy_qp)(ibv_qp *qp) noexcept nogil

    const char *(*wc_status_str)(ibv_wc_status status) noexcept nogil
    const char *(*event_type_str)(ibv_event_type event) noexcept nogil
