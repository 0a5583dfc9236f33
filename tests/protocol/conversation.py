"""A conversation with every command (conversation.tsv): the requests, and patterns of the answers."""

from __future__ import annotations

import re
from typing import NamedTuple

from request_tables import octets, pattern, rows


class Exchange(NamedTuple):
    request: bytes
    reply: str
    both: bool  # memcached and ours


CONVERSATION = [
    # storage and retrieval
    Exchange(b"set a 5 0 3\r\nabc\r\n", r"STORED\r\n"),
    Exchange(b"get a\r\n", r"VALUE a 5 3\r\nabc\r\nEND\r\n"),
    Exchange(b"gets a\r\n", r"VALUE a 5 3 \d+\r\nabc\r\nEND\r\n"),
    Exchange(b"get nothere\r\n", r"END\r\n"),
    Exchange(b"add a 0 0 1\r\nx\r\nadd b 1 0 1\r\ny\r\n", r"NOT_STORED\r\nSTORED\r\n"),
    Exchange(b"replace c 0 0 1\r\nx\r\nreplace b 2 0 2\r\nyy\r\n", r"NOT_STORED\r\nSTORED\r\n"),
    Exchange(
        b"append b 9 0 1\r\n>\r\nprepend b 9 0 1\r\n<\r\nget b\r\n",
        r"STORED\r\nSTORED\r\nVALUE b 2 4\r\n<yy>\r\nEND\r\n",
    ),
    Exchange(b"append c 0 0 1\r\nx\r\nprepend c 0 0 1\r\nx\r\n", r"NOT_STORED\r\nNOT_STORED\r\n"),
    Exchange(b"cas a 0 0 1 999999\r\nx\r\ncas c 0 0 1 1\r\nx\r\n", r"EXISTS\r\nNOT_FOUND\r\n"),
    Exchange(b"get a nothere b a\r\n", r"VALUE a 5 3\r\nabc\r\nVALUE b 2 4\r\n<yy>\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
    Exchange(b"gets  a   b \r\n", r"VALUE a 5 3 \d+\r\nabc\r\nVALUE b 2 4 \d+\r\n<yy>\r\nEND\r\n"),
    Exchange(b"set z 0 0 0\r\n\r\nget z\r\n", r"STORED\r\nVALUE z 0 0\r\n\r\nEND\r\n"),
    Exchange(b"set bin 0 0 7\r\n\r\n\0\r\nz\n\r\nget bin\r\n", r"STORED\r\nVALUE bin 0 7\r\n\r\n\0\r\nz\n\r\nEND\r\n"),
    Exchange(
        b"set %s 4294967295 0 1\r\nx\r\nget %s\r\n" % (LONG_KEY, LONG_KEY),
        r"STORED\r\nVALUE k{250} 4294967295 1\r\nx\r\nEND\r\n",
    ),
    Exchange(
        b"set big 0 0 %d\r\n%s\r\nget big big\r\n" % (len(BIG), BIG),
        r"STORED\r\n(VALUE big 0 1024\r\n[0-9a-f]{1024}\r\n){2}END\r\n",
    ),
    Exchange(b"set nl 0 0 1\nx\r\nget nl\n", r"STORED\r\nVALUE nl 0 1\r\nx\r\nEND\r\n"),
    Exchange(b"set o 4294967296 0 1\r\nx\r\nget o\r\n", r"STORED\r\nVALUE o 0 1\r\nx\r\nEND\r\n"),
    Exchange(b"set gone 0 -1 1\r\nx\r\nget gone\r\n", r"STORED\r\nEND\r\n"),
    # noreply
    Exchange(
        b"set n 0 0 1 noreply\r\n1\r\nadd n 0 0 1 noreply\r\n2\r\nreplace n 0 0 2 noreply\r\n34\r\n"
        b"append n 0 0 1 noreply\r\n5\r\nprepend n 0 0 1 noreply\r\n2\r\ncas n 0 0 1 1 noreply\r\n9\r\n"
        b"incr n 1 noreply\r\ndecr n 2 noreply\r\ntouch n 0 noreply\r\nget n\r\n",
        r"VALUE n 0 4\r\n2344\r\nEND\r\n",
    ),
    Exchange(b"delete n noreply\r\nverbosity 1 noreply\r\nget n\r\n", r"END\r\n"),
    Exchange(b"set n 0 0 1 noreplyx\r\n1\r\n", r"STORED\r\n"),
    Exchange(
        b"nonsense noreply\r\nset n 0 0 1 noreply\r\n123\r\nmn\r\n",
        r"(CLIENT_ERROR bad command line format|ERROR)\r\nMN\r\n",
        False,
    ),
    # arithmetic
    Exchange(
        b"set num 0 0 1\r\n9\r\nincr num 1\r\ndecr num 3\r\nget num\r\n",
        r"STORED\r\n10\r\n7\r\nVALUE num 0 2\r\n7 \r\nEND\r\n",
    ),
    Exchange(
        b"incr nothere 1\r\ndecr nothere 1\r\nincr a 1\r\nincr num x\r\nincr num -1\r\n",
        r"NOT_FOUND\r\nNOT_FOUND\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
        r"(CLIENT_ERROR invalid numeric delta argument\r\n){2}",
    ),
    Exchange(b"set max 0 0 20\r\n18446744073709551615\r\nincr max 1\r\ndecr max 5\r\n", r"STORED\r\n0\r\n0\r\n"),
    # touch, gat, delete
    Exchange(
        b"touch a 100\r\ntouch nothere 100\r\ntouch a x\r\n",
        r"TOUCHED\r\nNOT_FOUND\r\nCLIENT_ERROR invalid exptime argument\r\n",
    ),
    Exchange(b"gat 0 a nothere b\r\n", r"VALUE a 5 3\r\nabc\r\nVALUE b 2 4\r\n<yy>\r\nEND\r\n"),
    Exchange(b"gats 0 a\r\ngat x a\r\n", r"VALUE a 5 3 \d+\r\nabc\r\nEND\r\nCLIENT_ERROR invalid exptime argument\r\n"),
    Exchange(b"delete b\r\ndelete b\r\n", r"DELETED\r\nNOT_FOUND\r\n"),
    Exchange(b"set d 0 0 1\r\nx\r\ndelete d 10\r\n", r"STORED\r\nDELETED\r\n", False),
    # errors
    Exchange(b"foo bar\r\n", r"ERROR\r\n"),
    Exchange(b"     \r\n", r"ERROR\r\n"),
    Exchange(
        b"get\r\ngat 10\r\ntouch a\r\nincr a\r\nset a\r\n\r\nmn\n",
        r"(CLIENT_ERROR bad command line format\r\n){7}",
        False,
    ),
    Exchange(b"set neg 0 0 -1\r\n", r"CLIENT_ERROR bad (command line format|data chunk)\r\n"),
    Exchange(
        b"set f -1 0 1\r\nx\r\nset f 0 x 1\r\nx\r\ncas f 0 0 1\r\nx\r\nget f\r\n",
        r"(CLIENT_ERROR bad command line format\r\n){3}END\r\n",
        False,
    ),
    Exchange(
        b"set bad 0 0 3\r\nabcdef\r\nversion\r\n",
        r"CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\nVERSION 1\.6\.45\r\n",
        False,
    ),
    Exchange(
        b"set %sk 0 0 1\r\nx\r\nversion\r\n" % LONG_KEY, r"CLIENT_ERROR bad command line format\r\nVERSION .*\r\n"
    ),
    Exchange(b"get a %sk a\r\n" % LONG_KEY, r"CLIENT_ERROR bad command line format\r\n\r\n", False),
    Exchange(
        b"set a 0 0 2000000\r\n%s\r\nget a\r\n" % (b"v" * 2000000),
        r"SERVER_ERROR object too large for cache\r\nEND\r\n",
    ),
    # meta
    Exchange(b"mn\r\nmn foo\r\n", r"MN\r\nMN\r\n"),
    Exchange(b"mg nothere v\r\nmg nothere v q\r\n", r"EN\r\n"),
    Exchange(b"mg nothere k Oabc\r\n", r"EN knothere Oabc\r\n", False),
    Exchange(b"ms m 3 c k Oop F7 T100\r\nabc\r\n", r"HD c\d+ km Oop\r\n"),
    Exchange(b"ms m 3 s c F7 T100\r\nabc\r\n", r"HD s3 c\d+\r\n", False),
    Exchange(b"mg m\r\nmg m v\r\nmg m s v f k t Oop\r\n", r"HD\r\nVA 3\r\nabc\r\nVA 3 s3 f7 km t100 Oop\r\nabc\r\n"),
    Exchange(b"mg m h l u\r\nmg m c\r\n", r"HD h1 l0\r\nHD c\d+\r\n"),
    Exchange(b"mg m T30 t\r\nmg m q k\r\n", r"HD t30\r\nHD km\r\n"),
    Exchange(b"mg viv N30 t v\r\nmg viv N30 v\r\n", r"VA 0 t30 W\r\n\r\nVA 0 Z\r\n\r\n"),
    Exchange(b"mg m R40\r\nmg m R40\r\n", r"HD W\r\nHD Z\r\n"),
    Exchange(
        b"ms Zm9v 1 b k\r\nx\r\nget foo\r\nmg Zm9v b k v\r\n",
        r"HD kZm9v b\r\nVALUE foo 0 1\r\nx\r\nEND\r\nVA 1 kZm9v b\r\nx\r\n",
    ),
    Exchange(
        b"ms e 1 ME\r\na\r\nms e 1 ME\r\nb\r\nms e 1 MA\r\nb\r\nms e 1 MP\r\n0\r\nms e 1 MR\r\nr\r\nms e 1 MS\r\ns\r\n",
        r"HD\r\nNS\r\nHD\r\nHD\r\nHD\r\nHD\r\n",
    ),
    Exchange(b"ms e 2 MA s\r\nxy\r\nms e 1 MP s\r\nz\r\n", r"HD s3\r\nHD s4\r\n", False),
    Exchange(b"ms nothere 1 MR\r\na\r\nms nothere 1 MA\r\na\r\nms nothere 1 C3\r\na\r\n", r"NS\r\nNS\r\nNF\r\n"),
    Exchange(
        b"ms e 1 q\r\nx\r\nms e 1 MZ\r\nx\r\nms e x\r\nmn\r\n",
        r"CLIENT_ERROR invalid mode for ms M token\r\nCLIENT_ERROR bad \w+ .*\r\nMN\r\n",
        False,
    ),
    Exchange(
        b"ms e 1 E50\r\nx\r\nms e 1 C49\r\ny\r\nms e 1 I C40\r\nz\r\nmg e v s\r\n",
        r"HD\r\nEX\r\nHD\r\nVA 1 s1 X W\r\nz\r\n",
        False,
    ),
    Exchange(b"ms e 2 S3\r\nxy\r\n", r"CLIENT_ERROR invalid flag\r\n", False),
    Exchange(b"ms v 1 MA N30\r\nx\r\nmg v t v\r\n", r"HD\r\nVA 1 t30\r\nx\r\n", False),
    Exchange(b"md m q\r\nmd m\r\nmd m k Oo\r\n", r"NF\r\nNF km Oo\r\n"),
    Exchange(
        b"ms m 1 E3\r\nx\r\nmd m C2\r\nmd m I T30\r\nmg m v t\r\nmg m v\r\n",
        r"HD\r\nEX\r\nHD\r\nVA 1 t30 X W\r\nx\r\nVA 1 Z X\r\nx\r\n",
        False,
    ),
    Exchange(b"md m x\r\nmg m v\r\nmd m\r\n", r"HD\r\nVA 0\r\n\r\nHD\r\n", False),
    Exchange(
        b"set ma 0 0 1\r\n5\r\nma ma v\r\nma ma D10 v\r\nma ma MD D3 v t\r\nma ma M- v\r\nma ma q\r\nma ma k Oo\r\n",
        r"STORED\r\nVA 1\r\n6\r\nVA 2\r\n16\r\nVA 2 t-1\r\n13\r\nVA 2\r\n12\r\nHD kma Oo\r\n",
    ),
    Exchange(
        b"ma ma2 N30 J13 v\r\nma ma2 N30 J13 v t\r\nma nothere\r\nma a\r\nms t 1\r\nx\r\nma t\r\n",
        r"VA 2\r\n13\r\nVA 2 t30\r\n14\r\nNF\r\nNF\r\nHD\r\n"
        r"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    ),
    Exchange(b"ma ma C1 v\r\nma ma MX\r\n", r"EX\r\nCLIENT_ERROR invalid mode for ma M token\r\n"),
    Exchange(b"me ma\r\nme nothere\r\n", r"ME ma exp=-1 la=0 cas=\d+ fetch=no cls=1 size=\d+\r\nEN\r\n"),
    Exchange(
        b"mg a v v\r\nmg a \x7f\r\nmg\r\nms a\r\nms a 1 S T1 %\r\n",
        r"CLIENT_ERROR duplicate flag\r\n(CLIENT_ERROR bad command line format\r\n){4}",
        False,
    ),
    # the rest
    Exchange(b"verbosity 1\r\n", r"OK\r\n"),
    Exchange(b"shutdown\r\n", r"SERVER_ERROR: shutdown not enabled\r\n", False),
    Exchange(
        b"stats nothing\r\nstats\r\nstats reset\r\nrdma version=2\r\n",
        r"ERROR\r\nSTAT pid 4711\r\nSTAT version 1\.6\.45\r\nEND\r\nRESET\r\nERROR\r\n",
        False,
    ),
    Exchange(
        b"flush_all noreply\r\nflush_all 0\r\nflush_all\r\nflush_all x\r\nget ma\r\n",
        r"OK\r\nOK\r\nCLIENT_ERROR .*\r\nEND\r\n",
    ),
    Exchange(b"set last 0 0 1\r\nx\r\nquit\r\n", r"STORED\r\n"),
]


def normal(reply: bytes) -> bytes:
    """The answers without CAS values."""
    reply = re.sub(rb"(VALUE \S+ \d+ \d+) \d+", rb"\1 #", reply)
    return re.sub(rb" (c|cas=)\d+", rb" \1#", reply)
