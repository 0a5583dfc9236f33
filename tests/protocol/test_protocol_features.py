"""What each command does, request by request: a step is bytes to send, or seconds by which the clock moves."""

from __future__ import annotations

import re

import pytest
from request_tables import octets, pattern, rows

from rmemcached.protocol._testing import Machine, Server

Step = bytes | int

FEATURES: dict[str, tuple[list[Step], str]] = {
    # storage
    "set-get": ([b"set a 5 0 3\r\nabc\r\nget a\r\n"], r"^STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\n$"),
    "set-noreply": ([b"set nr 0 0 1 noreply\r\nx\r\nget nr\r\n"], r"^VALUE nr 0 1\r\nx\r\nEND\r\n$"),
    "add": ([b"add ad 0 0 1\r\nx\r\nadd ad 0 0 1\r\ny\r\n"], r"^STORED\r\nNOT_STORED\r\n$"),
    "replace": (
        [b"replace rp 0 0 1\r\nx\r\nset rp 0 0 1\r\nx\r\nreplace rp 0 0 1\r\ny\r\n"],
        r"^NOT_STORED\r\nSTORED\r\nSTORED\r\n$",
    ),
    "append-prepend-keep-flags": (
        [b"set ap 7 0 1\r\nb\r\nappend ap 0 0 1\r\nc\r\nprepend ap 0 0 1\r\na\r\nget ap\r\n"],
        r"STORED\r\nVALUE ap 7 3\r\nabc\r\n",
    ),
    "append-keeps-ttl": (
        [b"set ap 0 5 1\r\nb\r\nappend ap 0 0 1\r\nc\r\nmg ap t\r\n", 6, b"get ap\r\n"],
        r"HD t5\r\nEND\r\n$",
    ),
    "append-miss": ([b"append nope1 0 0 1\r\nc\r\n"], r"^NOT_STORED\r\n$"),
    "cas": (
        [b"set cs 0 0 1\r\nx\r\ncas cs 0 0 1 99999999\r\ny\r\ncas nocas 0 0 1 1\r\ny\r\n"],
        r"^STORED\r\nEXISTS\r\nNOT_FOUND\r\n$",
    ),
    "cas-without-number": ([b"cas cx 0 0 6\r\nbarva2\r\n"], r"^CLIENT_ERROR bad command line format\r\n$"),
    "flags-32-bit": ([b"set fl 4294967295 0 1\r\nx\r\nget fl\r\n"], r"VALUE fl 4294967295 1"),
    "flags-beyond": (
        [b"set fl2 4294967296 0 1\r\nx\r\nset fl2 -1 0 1\r\nx\r\nget fl2\r\n"],
        r"^STORED\r\nCLIENT_ERROR bad command line format\r\nVALUE fl2 0 1\r\nx\r\nEND",
    ),
    "zero-length": ([b"set z 0 0 0\r\n\r\nget z\r\n"], r"STORED\r\nVALUE z 0 0\r\n\r\nEND"),
    "negative-length": ([b"set neg 0 0 -1\r\n"], r"^CLIENT_ERROR bad command line format\r\n$"),
    "huge-length": ([b"set k 0 0 99999999999\r\n"], r"^CLIENT_ERROR bad command line format\r\n$"),
    "length-of-31-bits": ([b"set k 0 0 2147483646\r\n"], r"^CLIENT_ERROR bad command line format\r\n$"),
    "bad-terminator": ([b"set bd 0 0 3\r\nabcdef\r\nversion\r\n"], r"^CLIENT_ERROR bad data chunk\r\n"),
    "bad-terminator-keeps-old": (
        [b"set bd 0 0 1\r\nx\r\nset bd 0 0 1\r\nyyy\r\nget bd\r\n"],
        r"VALUE bd 0 1\r\nx\r\nEND",
    ),
    "too-large": (
        [b"set big 0 0 1\r\nx\r\nset big 0 0 2000000\r\n" + b"v" * 2000000 + b"\r\nget big\r\n"],
        r"^STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n$",
    ),
    "too-large-add-keeps-old": (
        [b"set big 0 0 1\r\nx\r\nadd big 0 0 2000000 noreply\r\n" + b"v" * 2000000 + b"\r\nget big\r\n"],
        r"^STORED\r\nVALUE big 0 1\r\nx\r\nEND\r\n$",
    ),
    "chained": (
        [b"set lc 0 0 900000\r\n" + b"v" * 900000 + b"\r\nappend lc 0 0 3\r\nend\r\nmg lc s\r\nget lc\r\n"],
        r"^STORED\r\nSTORED\r\nHD s900003\r\nVALUE lc 0 900003\r\nv{900000}end\r\nEND\r\n$",
    ),
    "chained-bad-terminator": (
        [b"set lc 0 0 900000\r\n" + b"v" * 900000 + b"xx\r\nget lc\r\n"],
        r"^CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\nEND\r\n$",
    ),
    "key-250": (
        [b"set " + b"k" * 250 + b" 0 0 1\r\nx\r\nget " + b"k" * 250 + b"\r\n"],
        r"^STORED\r\nVALUE k{250} 0 1\r\nx\r\nEND",
    ),
    "key-251": ([b"get " + b"k" * 251 + b"\r\n"], r"^CLIENT_ERROR bad command line format\r\n\r\n$"),
    "key-251-drops-the-blocks-before": (
        [b"set a 0 0 1\r\nx\r\nget a\r\nget a a " + b"k" * 251 + b" a\r\nget a\r\n"],
        r"^STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nCLIENT_ERROR bad command line format\r\n\r\n"
        r"VALUE a 0 1\r\nx\r\nEND\r\n$",
    ),
    "key-251-others": (
        [
            b"".join(
                b"%s %s%s\r\n" % (c, b"k" * 251, a)
                for c, a in [
                    (b"delete", b""),
                    (b"incr", b" 1"),
                    (b"touch", b" 1"),
                    (b"mg", b""),
                    (b"md", b""),
                    (b"me", b""),
                ]
            )
        ],
        r"^(CLIENT_ERROR bad command line format\r\n){6}$",
    ),
    "binary-safe": ([b"set bs 0 0 6\r\n\r\n\0\r\nz\r\nget bs\r\n"], r"VALUE bs 0 6\r\n\r\n\0\r\nz\r\nEND"),
    "exptime-negative": ([b"set ne 0 -1 1\r\nx\r\nget ne\r\n"], r"^STORED\r\nEND"),
    "exptime-relative": ([b"set re 0 1 1\r\nx\r\nget re\r\n", 2, b"get re\r\n"], r"^STORED\r\nVALUE.*END\r\nEND\r\n$"),
    "exptime-bad": ([b"set be 0 abc 1\r\nx\r\nmn\r\n"], r"^CLIENT_ERROR bad command line format\r\nMN\r\n$"),
    "cas-rises": (
        [b"set cu 0 0 1\r\nx\r\ngets cu\r\nset cu 0 0 1\r\ny\r\ngets cu\r\n"],
        r"VALUE cu 0 1 (\d+)\r\nx\r\nEND\r\nSTORED\r\nVALUE cu 0 1 (?!\1\b)\d+",
    ),
    # retrieval
    "multiget": (
        [b"set m1 0 0 1\r\n1\r\nset m2 0 0 1\r\n2\r\nget m1 nomiss m2 m1\r\n"],
        r"VALUE m1 0 1\r\n1\r\nVALUE m2 0 1\r\n2\r\nVALUE m1 0 1\r\n1\r\nEND\r\n$",
    ),
    "get-120-keys": ([b"get " + KEYS100 + b"\r\n"], r"^END\r\n$"),
    "too-few-words": (
        [b"get\r\ngat 10\r\ntouch a\r\nincr a\r\nset a\r\n\r\nget \r\ngat\r\ngat x\r\ngats 1 \r\ndelete\r\n"],
        r"^(CLIENT_ERROR bad command line format\r\n){11}$",
    ),
    "gat-gats": (
        [b"set ga 0 0 1\r\nx\r\ngat 10 ga\r\ngats 10 ga nokey\r\nmg ga t\r\n"],
        r"VALUE ga 0 1\r\nx\r\nEND\r\nVALUE ga 0 1 \d+\r\nx\r\nEND\r\nHD t10\r\n$",
    ),
    "touch": (
        [b"set tc 0 0 1\r\nx\r\ntouch tc 10\r\ntouch notc 10\r\n", 11, b"get tc\r\n"],
        r"^STORED\r\nTOUCHED\r\nNOT_FOUND\r\nEND\r\n$",
    ),
    "pipelined": (
        [b"set p1 0 0 1\r\n1\r\nget p1\r\nget p1\r\nversion\r\n"],
        r"STORED\r\nVALUE.*END\r\nVALUE.*END\r\nVERSION",
    ),
    "split": ([b"se", b"t sp 0 0 4\r\nab", b"cd\r", b"\nget sp\r\n"], r"^STORED\r\nVALUE sp 0 4\r\nabcd\r\nEND\r\n$"),
    "bare-newline": ([b"set ln 0 0 1\nx\r\nget ln\n"], r"STORED\r\nVALUE ln 0 1"),
    # delete, arithmetic
    "delete": ([b"set d1 0 0 1\r\nx\r\ndelete d1\r\ndelete d1\r\n"], r"STORED\r\nDELETED\r\nNOT_FOUND\r\n$"),
    "delete-number": ([b"set d2 0 0 1\r\nx\r\ndelete d2 10\r\n"], r"STORED\r\nDELETED\r\n$"),
    "delete-noreply": ([b"set d3 0 0 1\r\nx\r\ndelete d3 noreply\r\nget d3\r\n"], r"^STORED\r\nEND"),
    "incr-decr": ([b"set n 0 0 1\r\n9\r\nincr n 1\r\ndecr n 3\r\n"], r"STORED\r\n10\r\n7\r\n"),
    "decr-pads": ([b"set n2 0 0 2\r\n10\r\ndecr n2 1\r\nget n2\r\n"], r"STORED\r\n9\r\nVALUE n2 0 2\r\n9 \r\n"),
    "incr-wraps": ([b"set n3 0 0 20\r\n18446744073709551615\r\nincr n3 1\r\n"], r"STORED\r\n0\r\n"),
    "decr-stops-at-0": ([b"set n4 0 0 1\r\n5\r\ndecr n4 9\r\n"], r"STORED\r\n0\r\n"),
    "incr-miss": ([b"incr nonum 1\r\n"], r"^NOT_FOUND"),
    "incr-text": (
        [b"set n5 0 0 2\r\nhi\r\nincr n5 1\r\n"],
        r"CLIENT_ERROR cannot increment or decrement non-numeric value",
    ),
    "incr-rubbish": ([b"set n6 0 0 1\r\n1\r\nincr n6 abc\r\n"], r"CLIENT_ERROR invalid numeric delta argument"),
    "incr-grows-and-bumps-cas": (
        [b"set n7 0 0 1\r\n9\r\ngets n7\r\nincr n7 1\r\ngets n7\r\n"],
        r"VALUE n7 0 1 (\d+).*10\r\nVALUE n7 0 2 (?!\1\b)\d+",
    ),
    # others
    "version": ([b"version\r\nversion foo\r\n"], r"^(VERSION 1\.6\.45\r\n){2}$"),
    "verbosity": ([b"verbosity 1\r\nverbosity\r\n"], r"^OK\r\nCLIENT_ERROR bad command line format\r\n$"),
    "flush_all": ([b"set f1 0 0 1\r\nx\r\n", 2, b"flush_all\r\nget f1\r\n"], r"STORED\r\nOK\r\nEND"),
    "flush_all-delay": (
        [b"set f2 0 0 1\r\nx\r\nflush_all 2\r\nget f2\r\n", 4, b"get f2\r\n"],
        r"STORED\r\nOK\r\nVALUE f2.*END\r\nEND\r\n$",
    ),
    "flush_all-noreply": ([b"flush_all noreply\r\nflush_all abc\r\n"], r"^CLIENT_ERROR invalid exptime argument\r\n$"),
    "unknown": ([b"foo bar\r\n"], r"^ERROR\r\n$"),
    "unknown-words-of-known-length": (
        [b"gxx a\r\nxxxx\r\nmx a\r\nabcde\r\nabcdef\r\nabcdefg\r\n"],
        r"^(ERROR\r\n){6}$",
    ),
    "spaces": ([b" \r\n        \r\n"], r"^CLIENT_ERROR bad command line format\r\nERROR\r\n$"),
    "case": ([b"GET a\r\n"], r"^ERROR\r\n$"),
    "http": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\nversion\r\n"], r"^~CLOSED~$"),
    "http-post": ([b"POST /x HTTP/1.0\r\n"], r"^~CLOSED~$"),
    "quit": ([b"version\r\nquit\r\nversion\r\n"], r"^VERSION [\d.]+\r\n~CLOSED~$"),
    "quit-words": ([b"quit x\r\n"], r"^~CLOSED~$"),
    "long-line": ([b"x" * 2049], r"^~CLOSED~$"),
    "long-line-in-pieces": ([b"x" * 2000, b"x" * 48, b"mn\r\n"], r"^ERROR\r\n$"),
    "shutdown": ([b"shutdown\r\n"], r"^SERVER_ERROR: shutdown not enabled\r\n$"),
    "stats": (
        [b"stats\r\nstats items\r\nstats  dump 1 2 \r\nstats nonsense\r\n"],
        r"^STAT pid 4711\r\nSTAT version 1\.6\.45\r\nEND\r\nEND\r\nSTAT arguments seen\r\nEND\r\nERROR\r\n$",
    ),
    "stats-reset": ([b"stats reset\r\n"], r"^RESET\r\n$"),
    "stats-long": ([b"stats long\r\nmn\r\n"], r"^(STAT counter_with_a_long_name \d+\r\n){5000}END\r\nMN\r\n$"),
    "rdma-without": ([b"rdma version=2\r\n"], r"^ERROR\r\n$"),
    # meta
    "mn": ([b"mn\r\nmn foo\r\n"], r"^MN\r\nMN\r\n$"),
    "mg": ([b"mg nomg v\r\nset g1 0 0 1\r\nx\r\nmg g1\r\nmg g1 v\r\n"], r"^EN\r\nSTORED\r\nHD\r\nVA 1\r\nx\r\n$"),
    "mg-order": (
        [b"set g2 5 0 3\r\nabc\r\nmg g2 s t f k Oop v\r\n"],
        r"STORED\r\nVA 3 s3 t-1 f5 kg2 Oop\r\nabc",
    ),
    "mg-h-l-u": (
        [b"set g3 0 0 1\r\nx\r\nmg g3 h u\r\nmg g3 h\r\n", 3, b"mg g3 h l u\r\nmg g3 l\r\nmg g3 l\r\n"],
        r"HD h0\r\nHD h0\r\nHD h1 l3\r\nHD l3\r\nHD l",
    ),
    "mg-q": ([b"mg noq q v\r\nmn\r\n"], r"^MN\r\n$"),
    "mg-vivify": ([b"mg viv N30 t v\r\nmg viv N30 v\r\n"], r"VA 0 t30 W\r\n\r\nVA 0 Z\r\n"),
    "mg-recache": ([b"set rc 0 20 1\r\nx\r\nmg rc R30\r\nmg rc R30\r\nmg rc R10\r\n"], r"HD W\r\nHD Z\r\nHD Z\r\n$"),
    "mg-touch": ([b"set tt 0 0 1\r\nx\r\nmg tt T30 t\r\n"], r"HD t30"),
    "mg-C": (
        [b"ms cc 1 E77\r\nx\r\nmg cc C77 v\r\nmg cc C78 v\r\n"],
        r"HD\r\nHD\r\nVA 1\r\nx",
    ),
    "mg-b": (
        [b"ms Zm9v 1 b\r\nx\r\nget foo\r\nmg Zm9v b k v\r\nmg foo k\r\nmg YmFy b k\r\n"],
        r"HD\r\nVALUE foo 0 1\r\nx\r\nEND\r\nVA 1 kZm9v b\r\nx\r\nHD kZm9v b\r\nEN kYmFy b\r\n$",
    ),
    "b-vivified-keys-stay-binary": (
        [
            b"mg AAo= b N9\r\nmg AAo= b k\r\nma AAs= b N9\r\nmg AAs= b k\r\n"
            b"ms AAw= 1 b\r\nx\r\nmd AAw= b x\r\nmg AAw= b k\r\n"
        ],
        r"^HD W\r\nHD kAAo= b Z\r\nHD\r\nHD kAAs= b\r\nHD\r\nHD\r\nHD kAAw= b\r\n$",
    ),
    "b-bad": (
        [b"mg a b\r\nmg ==== b\r\nms abcd5 1 b\r\nx\r\nmn\r\n"],
        r"^(CLIENT_ERROR error decoding key\r\n){3}MN\r\n$",
    ),
    "mg-errors": (
        [b"mg\r\nmg a ff ff\r\nmg a v v\r\nmg a Tx\r\nmg a N\r\nmg a R-\r\nmg a z\r\n"],
        r"^CLIENT_ERROR bad command line format\r\n(CLIENT_ERROR duplicate flag\r\n){2}"
        r"(CLIENT_ERROR bad token in command line format\r\n){2}EN\r\nCLIENT_ERROR invalid flag\r\n$",
    ),
    "meta-too-many-flags": (
        [b"mg a k v s t c f h l u q Oa x b N1 T1 R1 F1 E1 C1\r\n", b"mg a " + b"k " * 30 + b"\r\n"],
        r"^(CLIENT_ERROR options flags are too long\r\n){2}$",
    ),
    "ms-modes": (
        [
            b"ms x1 1 ME\r\na\r\nms x1 1 ME\r\na\r\nms x1 1 MA\r\nb\r\nms x1 1 MP\r\nz\r\nms x1 1 MR\r\nq\r\n"
            b"ms nox1 1 MR\r\nx\r\nms x1 1 MS\r\nx\r\n"
        ],
        r"^HD\r\nNS\r\nHD\r\nHD\r\nHD\r\nNS\r\nHD\r\n$",
    ),
    "ms-flags": (
        [b"ms y1 3 F9 T60 c k s Oz\r\nabc\r\nmg y1 f t\r\n"],
        r"^HD c\d+ ky1 s3 Oz\r\nHD f9 t60\r\n$",
    ),
    "ms-quiet": (
        [b"ms y2 1 q\r\nx\r\nms y2 1 ME q\r\nx\r\nms y2 1 q\r\nxyz\r\nmn\r\n"],
        r"^NS\r\nCLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\nMN\r\n$",
    ),
    "ms-C": ([b"ms y3 1 E5\r\nx\r\nms y3 1 C4\r\ny\r\nms noy3 1 C4\r\ny\r\n"], r"^HD\r\nEX\r\nNF\r\n$"),
    "ms-I": (
        [b"ms y4 1 E50\r\nx\r\nms y4 1 I C40\r\ny\r\nmg y4 v s\r\nmg y4 v\r\n"],
        r"HD\r\nHD\r\nVA 1 s1 X W\r\ny\r\nVA 1 Z X\r\ny\r\n$",
    ),
    "ms-append-vivify": ([b"ms y5 1 MA N30\r\nx\r\nmg y5 t v\r\n"], r"HD\r\nVA 1 t30\r\nx"),
    "ms-append-size": (
        [b"ms y5 2\r\nab\r\nms y5 1 MA s\r\nc\r\nms y5 1 MP s k\r\n0\r\n"],
        r"^HD\r\nHD s3\r\nHD s4 ky5\r\n$",
    ),
    "ms-bad": (
        [b"ms y6 abc\r\nms y6 1 MZ\r\nx\r\nms y6 1 M\r\nx\r\nms y6 1 Fx\r\nx\r\nms y6\r\nms y6 -1\r\nmn\r\n"],
        r"^CLIENT_ERROR bad command line format\r\n(CLIENT_ERROR invalid mode for ms M token\r\n){2}"
        r"(CLIENT_ERROR bad command line format\r\n){3}MN\r\n$",
    ),
    "ms-too-large": (
        [b"ms big 1\r\nx\r\nms big 2000000 q MA\r\n" + b"v" * 2000000 + b"\r\nmg big\r\n"],
        r"^HD\r\nSERVER_ERROR object too large for cache\r\nEN\r\n$",
    ),
    "md": (
        [b"ms z1 1 E3\r\nx\r\nmd z1 C2\r\nmd z1 C3\r\nmd z1\r\nms z1 1\r\nx\r\nmd z1 q\r\nmd z1 k Oo\r\nmn\r\n"],
        r"^HD\r\nEX\r\nHD\r\nNF\r\nHD\r\nNF kz1 Oo\r\nMN\r\n$",
    ),
    "md-I-T": (
        [b"ms z2 1\r\nx\r\nmd z2 I T30\r\nmg z2 v t\r\nmg z2 v\r\n"],
        r"HD\r\nHD\r\nVA 1 t30 X W\r\nx\r\nVA 1 Z X\r\nx\r\n$",
    ),
    "md-I-E": ([b"ms z2 1\r\nx\r\nmd z2 I E99\r\nmg z2 c\r\n"], r"HD c99 X W\r\n$"),
    "md-x": ([b"ms z3 3\r\nabc\r\nmd z3 x\r\nmg z3 v\r\n"], r"HD\r\nHD\r\nVA 0\r\n\r\n$"),
    "md-x-I": ([b"ms z3 3 F5\r\nabc\r\nmd z3 x I\r\nmg z3 v f\r\n"], r"HD\r\nHD\r\nVA 0 f0 X W\r\n\r\n$"),
    "ma": (
        [b"set ma1 0 0 1\r\n5\r\nma ma1 v\r\nma ma1 D10 v\r\nma ma1 MD D3 v t\r\n"],
        r"STORED\r\nVA 1\r\n6\r\nVA 2\r\n16\r\nVA 2 t-1\r\n13",
    ),
    "ma-cas": (
        [b"ms ma1 1 E7\r\n5\r\nma ma1 C6\r\nma ma1 C7 E99 c v\r\nmg ma1 c v\r\n"],
        r"^HD\r\nEX\r\nVA 1 c99\r\n6\r\nVA 1 c99\r\n6\r\n$",
    ),
    "ma-cas-when-it-moves": (
        [b"ms ma1 1 E7\r\n9\r\nma ma1 C7 E99 c v T50\r\nmg ma1 c v t\r\n"],
        r"^HD\r\nVA 2 c99\r\n10\r\nVA 2 c99 t50\r\n10\r\n$",
    ),
    "ma-failed-keeps-ttl": ([b"ms ma1 1 T50\r\nx\r\nma ma1 T90\r\nmg ma1 t\r\n"], r"HD t50\r\n$"),
    "ma-vivify": (
        [b"ma ma2 N30 J13 v\r\nma ma2 N30 J13 v t\r\nmg ma2 t\r\n"],
        r"^VA 2\r\n13\r\nVA 2 t30\r\n14\r\nHD t30\r\n$",
    ),
    "ma-errors": (
        [b"set ma3 0 0 1\r\nx\r\nma ma3\r\nma noma3\r\nma ma3 q q\r\nma ma3 Dx\r\nma ma3 MX\r\nma\r\n"],
        r"CLIENT_ERROR cannot increment or decrement non-numeric value\r\nNF\r\n"
        r"(CLIENT_ERROR invalid or duplicate flag\r\n){2}CLIENT_ERROR invalid mode for ma M token\r\n"
        r"CLIENT_ERROR bad command line format\r\n$",
    ),
    "ma-q": ([b"ma a N0 q\r\nma a q\r\nma nothere q k\r\nmg a v\r\n"], r"^NF knothere\r\nVA 1\r\n1\r\n$"),
    "me": (
        [b"set me1 0 0 1\r\nx\r\nme me1\r\nme nome1\r\n"],
        r"ME me1 exp=-1 la=\d+ cas=\d+ fetch=no cls=\d+ size=\d+\r\nEN\r\n$",
    ),
    "me-b": ([b"ms Zm9v 1 b T9\r\nx\r\nme Zm9v b k\r\nme foo\r\n"], r"^HD\r\n(ME Zm9v exp=9 la=0 .*\r\n){2}$"),
    "P-and-L": ([b"set pl 0 0 1\r\nx\r\nmg pl Pfoo Lbar v\r\n"], r"VA 1\r\nx"),
    "opaque-too-long": (
        [
            b"mg pl O"
            + b"o" * 32
            + b"\r\nms pl 1 q O"
            + b"o" * 32
            + b"\r\nx\r\nmd pl O"
            + b"o" * 32
            + b"\r\nma pl O"
            + b"o" * 32
            + b"\r\nmg pl O"
            + b"o" * 31
            + b"\r\n"
        ],
        r"^(CLIENT_ERROR opaque token too long\r\n){4}EN O" + "o" * 31 + r"\r\n$",
    ),
    "quiet-pipeline": ([b"mg a1 q v\r\nmg a2 q v\r\nmd a3 q\r\nmn\r\n"], r"^NF\r\nMN\r\n$"),
}


def run(machine: Machine, steps: list[Step]) -> str:
    reply = b""
    for step in steps:
        if isinstance(step, int):
            machine.server.advance(step)
        else:
            reply += machine.feed(step)
    return reply.decode("latin-1") + ("~CLOSED~" if machine.closed else "")


@pytest.mark.parametrize("name", FEATURES)
def test_feature(name: str) -> None:
    steps, expected = FEATURES[name]
    server = Server()
    reply = run(Machine(server), steps)
    assert re.search(expected, reply, re.DOTALL), reply[:500]
    server.check()


def test_absolute_exptime() -> None:
    server = Server()
    machine = Machine(server)
    assert machine.feed(b"set ae 0 %d 1\r\nx\r\nmg ae t\r\n" % (server.now + 10)) == b"STORED\r\nHD t10\r\n"
    server.advance(11)
    assert machine.feed(b"get ae\r\nset ae 0 %d 1\r\nx\r\nget ae\r\n" % (server.now - 1)) == b"END\r\nSTORED\r\nEND\r\n"


def test_without_cas() -> None:
    machine = Machine(Server(use_cas=False))
    assert (
        machine.feed(b"set c 0 0 1\r\nx\r\ngets c\r\nmg c c\r\n") == b"STORED\r\nVALUE c 0 1 0\r\nx\r\nEND\r\nHD c0\r\n"
    )


def test_flush_all_refused() -> None:
    machine = Machine(Server(flush_enabled=False))
    assert machine.feed(b"flush_all\r\n") == b"CLIENT_ERROR flush_all not allowed\r\n"


def test_no_memory_left() -> None:
    server = Server(maxbytes=2 << 20, evict_to_free=False)
    machine = Machine(server)
    request = b"set k%d 0 0 100000\r\n" + b"v" * 100000 + b"\r\n"
    replies = [machine.feed(request % i) for i in range(60)]
    assert replies[0] == b"STORED\r\n"
    assert replies[-1] == b"SERVER_ERROR out of memory storing object\r\n"
    assert server.stats()["store_no_memory"] == replies.count(replies[-1])
    server.check()


def test_verbosity_reaches_the_server() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(b"verbosity 1\r\n")
    assert server.verbosity == 1
    machine.feed(b"verbosity 4000000000 noreply\r\n")
    assert server.verbosity == 2


def test_exchange_line() -> None:
    machine = Machine(Server(exchange=True))
    assert machine.feed(b"rdma version=2 x=noreply\r\n") == b"RDMA got rdma version=2 x=noreply\r\n"


def test_counters() -> None:
    server = Server()
    machine = Machine(server)
    machine.feed(
        b"set a 0 0 1\r\n1\r\nget a b\r\ngets a\r\ngat 0 a b\r\ntouch a 0\r\ntouch b 0\r\nincr a 1\r\n"
        b"incr b 1\r\ndecr a 1\r\ndecr b 1\r\ncas a 0 0 1 99\r\nx\r\ncas b 0 0 1 1\r\nx\r\n"
        b"ms c 1 E5\r\nx\r\nms c 1 C5\r\ny\r\nmg c v\r\nmg d v\r\n"
        b"mg c T0\r\nma a\r\nma b\r\nmd d\r\nmd c\r\ndelete b\r\ndelete a\r\nme a\r\nflush_all\r\n"
        b"set z 0 0 2000000 noreply\r\n" + b"x" * 2000002
    )
    expected = {
        "get_cmds": 5, "get_hits": 3, "get_misses": 2, "touch_cmds": 5, "touch_hits": 3, "touch_misses": 2,
        "incr_hits": 2, "incr_misses": 2, "decr_hits": 1, "decr_misses": 1,
        "cas_badval": 1, "cas_misses": 1, "cas_hits": 1,
        "set_cmds": 5, "delete_hits": 2, "delete_misses": 2, "meta_cmds": 1, "flush_cmds": 1, "store_too_large": 1,
        "response_obj_count": 0,
    }  # fmt: skip
    counted = server.stats()
    assert {name: counted[name] for name in expected} == expected
