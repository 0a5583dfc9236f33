cdef inline rdma_lane *table_get(const lane_table *table, uint32_t id) noexcept nogil:
    if id >= table.size or table.pages == NULL or table.pages[id // TABLE_PAGE] == NULL:
        return NULL
    return table.pages[id // TABLE_PAGE][id % TABLE_PAGE]


cdef bint table_reserve(lane_table *table, uint32_t id) noexcept nogil:
    cdef uint32_t page = id // TABLE_PAGE
    assert_that(id < table.size)
    if table.pages == NULL:
        table.pages = <rdma_lane ***>calloc(table.size // TABLE_PAGE + 1, sizeof(rdma_lane **))
        if table.pages == NULL:
            return False
    if table.pages[page] == NULL:
        table.pages[page] = <rdma_lane **>calloc(TABLE_PAGE, sizeof(rdma_lane *))
    return table.pages[page] != NULL


cdef void table_put(lane_table *table, uint32_t id, rdma_lane *lane) noexcept nogil:
    assert_that(id < table.size and table.pages[id // TABLE_PAGE] != NULL)
    table.pages[id // TABLE_PAGE][id % TABLE_PAGE] = lane


cdef void table_free(lane_table *table) noexcept nogil:
    cdef uint32_t page
    if table.pages == NULL:
        return
    for page in range(table.size // TABLE_PAGE + 1):
        free(table.pages[page])
    free(table.pages)
    table.pages = NULL


cdef void list_append(lane_list *list, rdma_lane *lane) noexcept nogil:
    lane.list_next = NULL
    lane.list_prev = list.last
    if list.last != NULL:
        list.last.list_next = lane
    else:
        list.first = lane
    list.last = lane
    list.count += 1


cdef void list_remove(lane_list *list, rdma_lane *lane) noexcept nogil:
    assert_that(list.count > 0)
    if lane.list_prev != NULL:
        lane.list_prev.list_next = lane.list_next
    else:
        list.first = lane.list_next
    if lane.list_next != NULL:
        lane.list_next.list_prev = lane.list_prev
    else:
        list.last = lane.list_prev
    list.count -= 1
