#!/usr/bin/env python3
"""Random conversations with two daemons, whose replies must be the same to the byte.

    differential.py --peer '/path/to/memcached -u root' [--ours 'python -m rmemcached'] [--seed N] [--count N]

The peer is to be memcached 1.6.45: older versions answer errors otherwise. Both daemons get the same bytes, cut at the
same places, so CAS numbers agree as well. A conversation ends when the client has nothing more to say and the daemon
has closed. Where replies differ, the program prints the shortest conversation found with a difference, and starts both
daemons anew.

Times may differ by a second. A daemon that closes with input unread may lose replies: then the shorter replies must be
the beginning of the longer.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shlex
import socket
import struct
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence

TIMEOUT = 10.0
EPOCH = 200  # conversations; the last quarter of them is binary
KEYS = [b"a", b"b", b"key", b"p:x", b"p:y", b"K" * 250, b"\xc3\xa4", b"n1", b"n2"]
ODD_KEYS = [b"L" * 251, b"", b"a\x00b", b"a\tb", b"M" * 300, b"Zm9v", b"="]
NUMBERS = [b"0", b"1", b"5", b"10", b"100"]
ODD_NUMBERS = [
    *(b"-1", b"+1", b"01", b"4294967295", b"4294967296", b"18446744073709551615", b"18446744073709551616", b"-0", b"x"),
    *(b"99999999999999999999999", b"1x", b"0x1", b"2147483647", b"2147483648", b"-2147483649", b"1.5", b"", b"--1"),
]
VALUES = [b"", b"x", b"12", b"99", b"0", b"18446744073709551615", b"a\r\nb", b"v" * 100, b"w" * 3000, b"5 ", b"-1"]
BLANKS = [b" ", b" ", b" ", b" ", b" ", b" ", b"  ", b"   "]
META_FLAGS = {
    b"mg": b"b c f h k l O q s t u v E N R T C I P L".split(),
    b"ms": b"b c C E F I k O q s T M N P L".split(),
    b"md": b"b C E I k O q T x P L".split(),
    b"ma": b"b C E N J D T M O q t c v k P L".split(),
    b"me": b"b k O q".split(),
    b"mn": b"q k O".split(),
}
TOKENS_OF_FLAGS = {
    b"O": (b"1", b"opaque", b"o" * 31, b""),
    b"M": (b"I", b"D", b"+", b"-", b"S", b"A", b"P", b"R", b"E"),
}


class Speaker:
    """Makes up the commands of a client."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.first = True

    def odd(self, one_in: int = 12) -> bool:
        return self.random.randrange(one_in) == 0

    def key(self) -> bytes:
        return self.random.choice(ODD_KEYS if self.odd(15) else KEYS)

    def number(self) -> bytes:
        return self.random.choice(ODD_NUMBERS if self.odd(8) else NUMBERS)

    def flags(self) -> bytes:
        return self.random.choice([b"0", b"0", b"7", b"65536", b"4294967295"]) if not self.odd() else self.number()

    def exptime(self) -> bytes:
        return self.random.choice([b"0", b"0", b"0", b"1000", b"-1", b"2592000"]) if not self.odd() else self.number()

    def line(self, words: Sequence[bytes]) -> bytes:
        """A command line of these words; now and then with words too many or too few, and blanks."""
        words = list(words)
        if self.odd():
            del words[self.random.randrange(len(words))]
        if self.odd():
            extra = self.random.choice([b"noreply", b"0", b"extra", b"q", b"-"])
            words.insert(self.random.randint(0, len(words)), extra)
        blank = self.random.choice(BLANKS) if self.odd(6) else b" "
        end = b"\n" if self.odd(15) else b"\r\n"
        text = blank.join(words)
        if self.odd(20):
            text = self.random.choice([b" " + text, text + b" ", text.upper(), text.replace(b" ", b"\t", 1), text[:-1]])
        return text + end

    def data(self, value: bytes) -> bytes:
        if self.odd(25):
            return self.random.choice([value, value + b"\n", value + b"xx\r\n", value[:-1] + b"\r\n", b""])
        return value + b"\r\n"

    def noreply(self) -> list[bytes]:
        return [b"noreply"] if self.random.randrange(6) == 0 else []

    def text_command(self) -> bytes:
        pick = self.random.choice
        kind = self.random.randrange(100)
        if kind < 30:
            name = pick([b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas"])
            value = pick(VALUES)
            length = b"%d" % len(value) if not self.odd(15) else self.number()
            words = [name, self.key(), self.flags(), self.exptime(), length]
            if name == b"cas":
                words.append(self.number())
            return self.line(words + self.noreply()) + self.data(value)
        if kind < 50:
            name = pick([b"get", b"gets", b"gat", b"gats"])
            words = [name] if name in (b"get", b"gets") else [name, self.exptime()]
            count = pick([1, 1, 1, 2, 3, 8, 30])
            # The keys stay within the limit: for a longer key memcached drops the replies to earlier commands, too.
            return self.line(words + [self.key()[:250] for _ in range(count)])
        if kind < 62:
            return self.line([pick([b"incr", b"decr"]), self.key(), self.number(), *self.noreply()])
        if kind < 70:
            return self.line([b"delete", self.key(), *self.noreply()])
        if kind < 76:
            return self.line([b"touch", self.key(), self.exptime(), *self.noreply()])
        if kind < 80:
            return self.line([pick([b"version", b"mn"])])
        if kind < 84:
            return self.line([b"verbosity", pick([b"0", b"x", b"-1"]), *self.noreply()])
        if kind < 88:
            return self.line([b"flush_all", pick([b"1000000", b"x", b"noreply", b"-5"]), *self.noreply()])
        if kind < 96:
            return self.line(self.random.sample([*KEYS, *ODD_KEYS, *NUMBERS, b"get", b"set", b"q", b"noreply"], 3))
        return self.admin_command()

    def admin_command(self) -> bytes:
        pick = self.random.choice
        words = pick(
            [
                [b"stats", pick([b"nosuch", b"sizes", b"detail", b"cachedump", b"detail on", b"detail off"])],
                [b"stats", b"cachedump", self.number(), self.number()],
                [b"stats", b"detail", pick([b"off", b"x", b"dump"])],
                [b"slabs", pick([b"reassign", b"automove", b"x"]), self.number(), self.number()],
                [b"slabs", b"automove", pick([b"1", b"x", b"window 10", b"ratio 0.8", b"ratio x", b"window"])],
                [b"lru", pick([b"mode", b"tune", b"temp_ttl"]), pick([b"segmented", b"x", b"-1"])],
                [b"lru", b"tune", b"20", pick([b"40", b"x", b"90"]), b"0.2", pick([b"2.0", b"x", b"-1"])],
                [b"lru_crawler", pick([b"sleep", b"tocrawl", b"x", b"enable"]), self.number()],
                [b"cache_memlimit", pick([b"64", b"1", b"x", b"0"])],
                [b"watch", pick([b"x", b"nosuch fetchers"])],
                [b"extstore", pick([b"item_age", b"d", b"max_frag", b"free_memchunks 1", b"x"]), self.number()],
                [pick([b"shutdown", b"debugtime", b"misbehave", b"extstore", b"quit"]), self.number()],
            ]
        )
        return b" ".join(words) + b"\r\n"

    def meta_command(self) -> bytes:
        name = self.random.choice([b"mg", b"mg", b"mg", b"ms", b"ms", b"md", b"ma", b"me", b"mn"])
        flags = []
        for flag in self.random.sample(META_FLAGS[name], self.random.randint(0, min(6, len(META_FLAGS[name])))):
            flags.append(self.meta_flag(flag))
        if any(flag[:1] == b"N" for flag in flags) and name != b"ms":
            # The flags N and b are not combined: N makes memcached forget the base64 encoding of the key.
            flags = [flag for flag in flags if flag != b"b"]
        if self.odd(15):
            flags.append(self.meta_flag(self.random.choice([b"z", b"!", b"S", b"v", b"k", b"M"])))
        if self.odd(20) and flags:
            flags.append(flags[0])
        key = self.key()
        if b"b" in flags and self.random.randrange(8):
            key = b64encode(key[:180])
        if name == b"mn":
            return self.line([name, *flags] if self.odd(3) else [name])
        if name != b"ms":
            return self.line([name, key, *flags])
        value = self.random.choice(VALUES)
        # The data are never bad: then memcached would apply the CAS number to the next command of the connection.
        return self.line([name, key, b"%d" % len(value), *flags]) + value + b"\r\n"

    def meta_flag(self, flag: bytes) -> bytes:
        if flag in TOKENS_OF_FLAGS:
            choices = TOKENS_OF_FLAGS[flag]
            return flag + (self.random.choice(choices) if self.odd(3) else choices[0])
        if flag in (b"T", b"N", b"R"):
            return flag + (self.random.choice([b"0", b"1000", b"-1", b"30"]) if not self.odd() else self.number())
        if flag in (b"C", b"E", b"D", b"J", b"F"):
            return flag + self.number()
        return flag + (self.number() if self.odd(25) else b"")

    def binary_command(self) -> bytes:
        pick = self.random.choice
        opcode = pick([*range(0x00, 0x1B), 0x1C, 0x1D, 0x1E, 0x23, 0x24])
        if opcode in (0x07, 0x17, 0x08, 0x18) and self.random.randrange(4):
            opcode = 0x00
        if opcode == 0x10:
            opcode = 0x0A
        key = self.key()[:250]
        extras, value = b"", b""
        if opcode in (0x01, 0x02, 0x03, 0x11, 0x12, 0x13):
            extras, value = struct.pack(">II", pick([0, 7, 0xFFFFFFFF]), pick([0, 0, 1000])), pick(VALUES)
        elif opcode in (0x05, 0x06, 0x15, 0x16):
            extras = struct.pack(">QQI", pick([0, 1, 2**64 - 1]), pick([0, 5, 2**64 - 1]), pick([0, 0xFFFFFFFF, 1000]))
        elif opcode in (0x0E, 0x0F, 0x19, 0x1A):
            value = pick(VALUES)
        elif opcode in (0x1C, 0x1D, 0x1E, 0x23, 0x24):
            extras = struct.pack(">I", pick([0, 1000]))
        elif opcode in (0x07, 0x17, 0x0A, 0x0B):
            key = b""
        elif opcode in (0x08, 0x18):
            key, extras = b"", pick([b"", struct.pack(">I", 1000000)])
        cas = pick([0, 0, 0, 1, 5, 2**64 - 1])
        magic, keylen, extlen, length = 0x80, len(key), len(extras), len(extras) + len(key) + len(value)
        if self.odd(40):
            # Key and extras are empty: memcached swallows their lengths twice for an unknown command.
            opcode, key, extras, value = self.random.randrange(0x40, 0x100), b"", b"", b""
            keylen = extlen = length = 0
        odd = self.first and self.odd(10)  # memcached drops waiting replies when a packet does not end
        if odd and pick([True, False]):
            keylen = pick([0, 1, 251, 300, 65535])
        if odd and pick([True, False]):
            extlen = pick([0, 4, 8, 20, 255])
        if odd and pick([True, False]):
            length = pick([0, 1, 8, 24, 1000, 0x7FFFFFFF, 0xFFFFFFFF])
        if self.first and self.odd(10):
            # Only the first packet gets a wrong magic: memcached would drop waiting replies.
            magic = pick([0x81, 0x00, 0xFF])
        head = (magic, opcode, keylen, extlen, 0, 0, length, self.random.getrandbits(32), cas)
        return struct.pack(">BBHBBHIIQ", *head) + extras + key + value

    def conversation(self, binary: bool) -> list[bytes]:
        """The commands of one connection."""
        kind = self.random.choice([self.text_command, self.meta_command, self.mixed_command])
        if binary:
            kind = self.binary_command
        commands = []
        for number in range(self.random.choice([1, 1, 2, 3, 5, 12])):
            self.first = number == 0
            commands.append(kind())
        return commands

    def mixed_command(self) -> bytes:
        return self.random.choice([self.text_command, self.meta_command])()

    def cuts(self, length: int, often: bool = False) -> list[int]:
        """The places where the stream is cut into writes: mostly none."""
        if length < 2 or (not often and self.random.randrange(4)):
            return []
        return sorted(self.random.sample(range(1, length), min(length - 1, self.random.randint(1, 4))))


def said(port: int, stream: bytes, cuts: Sequence[int]) -> tuple[bytes, bool]:
    """The replies to a conversation up to the daemon's close, and whether the close was orderly."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        replies = []
        try:
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                if start:
                    time.sleep(0.002)
                sock.sendall(stream[start:end])
            with contextlib.suppress(OSError):  # the daemon has closed already
                sock.shutdown(socket.SHUT_WR)
            while received := sock.recv(1 << 20):
                replies.append(received)
        except (ConnectionResetError, BrokenPipeError):
            # The replies before the reset are in the list.
            return b"".join(replies), False
        return b"".join(replies), True


class Daemon:
    """A daemon of the comparison. A context manager."""

    def __init__(self, command: str, *flags: str) -> None:
        self.command = [*shlex.split(command), "-l", "127.0.0.1", "-U", "0", "-t", "1", *flags]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([*self.command, "-p", str(self.port)], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.connect().close()
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.01)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(TIMEOUT)

    def said(self, stream: bytes, cuts: Sequence[int]) -> tuple[bytes, bool]:
        return said(self.port, stream, cuts)

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


TIMES = re.compile(rb"(?<= t)\d+|(?<= l)\d+|(?<=la=)\d+|(?<=exp=)\d+|(?<=b; )\d+")


ERROR = re.compile(rb"(CLIENT|SERVER)_ERROR [^\r\n]*\r\n\Z")


def same(ours: tuple[bytes, bool], theirs: tuple[bytes, bool]) -> bool:
    """Whether two results of `said` count as the same: see the exceptions at the top of this file."""
    (mine, orderly), (other, other_orderly) = ours, theirs
    if not (orderly and other_orderly):
        length = min(len(mine), len(other))
        return mine[:length] == other[:length]
    if mine == other:
        return True
    if mine.startswith(other) and ERROR.search(mine):
        # memcached sends its error line only after all of the data, of which a part is still missing.
        return True
    if TIMES.sub(b"", mine) != TIMES.sub(b"", other):
        return False
    pairs = zip(TIMES.findall(mine), TIMES.findall(other), strict=True)
    return all(abs(int(one) - int(two)) <= 1 for one, two in pairs)


Conversations = list[tuple[list[bytes], list[int]]]  # the commands, and the places where their stream is cut


class Comparison:
    """Two daemons and the conversations since their start."""

    def __init__(self, ours: Daemon, peer: Daemon) -> None:
        self.daemons = ours, peer
        self.told: Conversations = []

    def restart(self) -> None:
        for daemon in self.daemons:
            daemon.stop()
            daemon.start()
        self.told = []

    def tell(self, commands: list[bytes], cuts: list[int]) -> tuple[tuple[bytes, bool], tuple[bytes, bool]]:
        self.told.append((commands, cuts))
        ours, theirs = (daemon.said(b"".join(commands), cuts) for daemon in self.daemons)
        return ours, theirs

    def replayed(self, told: Conversations) -> bool:
        """Whether the last of these conversations has different replies from fresh daemons."""
        self.restart()
        result = True
        for commands, cuts in told:
            result = same(*self.tell(commands, cuts))
        return not result

    def shortest(self) -> Conversations:
        """The conversations without the commands needless for the difference in the last conversation."""
        told = self.told
        if not self.replayed(told):
            return told  # the difference was chance
        whole: Conversations = [(commands, []) for commands, _ in told]
        if self.replayed(whole):
            told = whole
        size = len(told) - 1
        while size:
            for at in range(0, len(told) - 1, size):
                fewer = told[:at] + told[min(at + size, len(told) - 1) :]
                if self.replayed(fewer):
                    told = fewer
                    size = min(size, len(told) - 1)
                    break
            else:
                size //= 2
        for index in range(len(told) - 1, -1, -1):
            at = 0
            while not told[index][1] and at < len(told[index][0]) > 1:
                commands = told[index][0][:at] + told[index][0][at + 1 :]
                fewer = [*told[:index], (commands, []), *told[index + 1 :]]
                if self.replayed(fewer):
                    told = fewer
                else:
                    at += 1
        return told


def shortened(text: bytes) -> str:
    shown = re.sub(rb"(.)\1{40,}", lambda found: found[1] + b"{x%d}" % len(found[0]), text)
    return repr(shown if len(shown) < 1500 else shown[:1500] + b"...")


def differences(compare: Comparison, seed: int, count: int) -> Iterator[str]:
    """Descriptions of the conversations with different replies."""
    binary = False
    for number in range(seed, seed + count):
        speaker = Speaker(number)
        if binary != (number % EPOCH >= EPOCH * 3 // 4):
            # New daemons are needed: in memcached the CAS number of a binary command can become the number of a text
            # command of the next connection.
            binary = not binary
            compare.restart()
        commands = speaker.conversation(binary)
        if same(*compare.tell(commands, speaker.cuts(len(b"".join(commands))))):
            continue
        *before, last = compare.shortest()
        compare.replayed(before) if before else compare.restart()
        ours, theirs = compare.tell(*last)
        lines = [f"seed {number}:", *(f"  before: {shortened(b''.join(told))}" for told, _ in before[-5:])]
        lines += [f"  sent:   {shortened(b''.join(last[0]))} {last[1] or ''}"]
        lines += [f"  ours:   {shortened(ours[0])} {'' if ours[1] else '(reset)'}"]
        lines += [f"  peer:   {shortened(theirs[0])} {'' if theirs[1] else '(reset)'}"]
        yield "\n".join(lines)
        compare.restart()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--ours", default=f"{sys.executable} -P -m rmemcached -u root")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args(arguments)
    found = 0
    with Daemon(options.ours) as ours, Daemon(options.peer) as peer:
        for description in differences(Comparison(ours, peer), options.seed, options.count):
            found += 1
            print(description, flush=True)
    print(f"{options.count} conversations, {found} went differently")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
