cdef bint loaded = False


cdef bint find(void *library, const char *name, void **out) noexcept nogil:
    out[0] = dlsym(library, name)
    return out[0] != NULL


cdef bint bind_contexts(void *library) noexcept nogil:
    """Fills in the functions of contexts. False: the library lacks a function."""
    return (
        find(library, b"TLS_server_method", <void **>&openssl.TLS_server_method)
        and find(library, b"TLS_client_method", <void **>&openssl.TLS_client_method)
        and find(library, b"SSL_CTX_new", <void **>&openssl.SSL_CTX_new)
        and find(library, b"SSL_CTX_free", <void **>&openssl.SSL_CTX_free)
        and find(library, b"SSL_CTX_up_ref", <void **>&openssl.SSL_CTX_up_ref)
        and find(library, b"SSL_CTX_ctrl", <void **>&openssl.SSL_CTX_ctrl)
        and find(library, b"SSL_CTX_set_options", <void **>&openssl.SSL_CTX_set_options)
        and find(library, b"SSL_CTX_use_certificate_chain_file", <void **>&openssl.SSL_CTX_use_certificate_chain_file)
        and find(library, b"SSL_CTX_use_PrivateKey_file", <void **>&openssl.SSL_CTX_use_PrivateKey_file)
        and find(library, b"SSL_CTX_check_private_key", <void **>&openssl.SSL_CTX_check_private_key)
        and find(library, b"SSL_CTX_load_verify_locations", <void **>&openssl.SSL_CTX_load_verify_locations)
        and find(library, b"SSL_load_client_CA_file", <void **>&openssl.SSL_load_client_CA_file)
        and find(library, b"SSL_CTX_set_client_CA_list", <void **>&openssl.SSL_CTX_set_client_CA_list)
        and find(library, b"SSL_CTX_set_verify", <void **>&openssl.SSL_CTX_set_verify)
        and find(library, b"SSL_CTX_set_cipher_list", <void **>&openssl.SSL_CTX_set_cipher_list)
        and find(library, b"SSL_CTX_set_ciphersuites", <void **>&openssl.SSL_CTX_set_ciphersuites)
        and find(library, b"SSL_CTX_set_psk_find_session_callback",
                 <void **>&openssl.SSL_CTX_set_psk_find_session_callback)
        and find(library, b"SSL_CTX_set_psk_use_session_callback",
                 <void **>&openssl.SSL_CTX_set_psk_use_session_callback)
        and find(library, b"SSL_CTX_sess_set_new_cb", <void **>&openssl.SSL_CTX_sess_set_new_cb)
        and find(library, b"SSL_CTX_set_msg_callback", <void **>&openssl.SSL_CTX_set_msg_callback)
        and find(library, b"SSL_CTX_set_default_passwd_cb", <void **>&openssl.SSL_CTX_set_default_passwd_cb)
        and find(library, b"SSL_CTX_set_ex_data", <void **>&openssl.SSL_CTX_set_ex_data)
        and find(library, b"SSL_CTX_get_ex_data", <void **>&openssl.SSL_CTX_get_ex_data)
        and find(library, b"SSL_get_SSL_CTX", <void **>&openssl.SSL_get_SSL_CTX)
    )


cdef bint bind_sessions(void *library) noexcept nogil:
    """Fills in the functions of sessions. False: the library lacks a function."""
    return (
        find(library, b"SSL_new", <void **>&openssl.SSL_new)
        and find(library, b"SSL_free", <void **>&openssl.SSL_free)
        and find(library, b"SSL_set_ex_data", <void **>&openssl.SSL_set_ex_data)
        and find(library, b"SSL_get_ex_data", <void **>&openssl.SSL_get_ex_data)
        and find(library, b"SSL_get_verify_mode", <void **>&openssl.SSL_get_verify_mode)
        and find(library, b"SSL_set_session_id_context", <void **>&openssl.SSL_set_session_id_context)
        and find(library, b"SSL_set_verify", <void **>&openssl.SSL_set_verify)
        and find(library, b"SSL_set_bio", <void **>&openssl.SSL_set_bio)
        and find(library, b"SSL_set_fd", <void **>&openssl.SSL_set_fd)
        and find(library, b"SSL_set_accept_state", <void **>&openssl.SSL_set_accept_state)
        and find(library, b"SSL_set_connect_state", <void **>&openssl.SSL_set_connect_state)
        and find(library, b"SSL_set_num_tickets", <void **>&openssl.SSL_set_num_tickets)
        and find(library, b"SSL_session_reused", <void **>&openssl.SSL_session_reused)
        and find(library, b"SSL_do_handshake", <void **>&openssl.SSL_do_handshake)
        and find(library, b"SSL_read", <void **>&openssl.SSL_read)
        and find(library, b"SSL_write", <void **>&openssl.SSL_write)
        and find(library, b"SSL_pending", <void **>&openssl.SSL_pending)
        and find(library, b"SSL_has_pending", <void **>&openssl.SSL_has_pending)
        and find(library, b"SSL_in_init", <void **>&openssl.SSL_in_init)
        and find(library, b"SSL_get_error", <void **>&openssl.SSL_get_error)
        and find(library, b"SSL_set_shutdown", <void **>&openssl.SSL_set_shutdown)
        and find(library, b"SSL_shutdown", <void **>&openssl.SSL_shutdown)
        and find(library, b"SSL_CIPHER_find", <void **>&openssl.SSL_CIPHER_find)
        and find(library, b"SSL_SESSION_new", <void **>&openssl.SSL_SESSION_new)
        and find(library, b"SSL_SESSION_free", <void **>&openssl.SSL_SESSION_free)
        and find(library, b"SSL_SESSION_set1_master_key", <void **>&openssl.SSL_SESSION_set1_master_key)
        and find(library, b"SSL_SESSION_set_cipher", <void **>&openssl.SSL_SESSION_set_cipher)
        and find(library, b"SSL_SESSION_set_protocol_version", <void **>&openssl.SSL_SESSION_set_protocol_version)
        and find(library, b"EVP_sha256", <void **>&openssl.EVP_sha256)
        and find(library, b"HMAC", <void **>&openssl.HMAC)
    )


cdef bint bind_others(void *library) noexcept nogil:
    """Fills in the rest of the table. False: the library lacks a function."""
    return (
        find(library, b"BIO_get_new_index", <void **>&openssl.BIO_get_new_index)
        and find(library, b"BIO_meth_new", <void **>&openssl.BIO_meth_new)
        and find(library, b"BIO_meth_set_write", <void **>&openssl.BIO_meth_set_write)
        and find(library, b"BIO_meth_set_read", <void **>&openssl.BIO_meth_set_read)
        and find(library, b"BIO_meth_set_ctrl", <void **>&openssl.BIO_meth_set_ctrl)
        and find(library, b"BIO_new", <void **>&openssl.BIO_new)
        and find(library, b"BIO_set_data", <void **>&openssl.BIO_set_data)
        and find(library, b"BIO_get_data", <void **>&openssl.BIO_get_data)
        and find(library, b"BIO_set_init", <void **>&openssl.BIO_set_init)
        and find(library, b"BIO_set_flags", <void **>&openssl.BIO_set_flags)
        and find(library, b"BIO_clear_flags", <void **>&openssl.BIO_clear_flags)
        and find(library, b"ERR_get_error", <void **>&openssl.ERR_get_error)
        and find(library, b"ERR_error_string_n", <void **>&openssl.ERR_error_string_n)
        and find(library, b"ERR_clear_error", <void **>&openssl.ERR_clear_error)
    )


cdef const char *openssl_load() noexcept nogil:
    global loaded
    cdef void *library
    if loaded:
        return NULL
    library = dlopen(b"libssl.so.3", RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        return b"libssl.so.3 is not installed: TLS needs OpenSSL 3 (Debian's package libssl3)"
    if not (bind_contexts(library) and bind_sessions(library) and bind_others(library)):
        dlclose(library)
        return b"libssl.so.3 lacks functions that TLS needs: OpenSSL 3.0 or later has them"
    loaded = True
    return NULL
