"""Reads a black box in plain Python, as far as the tests need it. See `proto/src/blackbox/`."""

import os
import struct

MAGIC = int.from_bytes(b"DDPDBOX\n", "little")
PUBLISHED = 1 << 63
# Of a site: in an installed package.
LIBRARY = 1 << 62
RECORD_WORDS = 16
UNKNOWN = 2**64 - 1
KINDS = (
    "unspecified issued returned wait-begin wait-end completed step phase-begin phase-end group-destroyed "
    "exception exit splits note input-ended group-timeout - memory setting"
).split()
LATER_KINDS = {30: "unawaited", 31: "lower_call", 32: "within", 33: "transfer", 40: "parameters", 50: "spent"}
# Kinds whose records have a different layout.
OTHERWISE = ("splits", "memory")
ASYNC, HIDDEN, P2P, NUMEL, SHAPE, ROOT, TAG, BORROWED_SITE, OUTPUT, FORWARD, REPEATED, UNSYNCHRONISED = (
    1 << bit for bit in range(12)
)
# Of a step that began with a forward.
UPDATED, SEES_UPDATES = 8192, 16384

# Ops that create a group.
CREATIONS = (33, 36)
# Numbers of operations.
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, BROADCAST = range(1, 7)
SEND, RECV, COALESCED, GATHER_COALESCED, SCATTER_COALESCED = 10, 11, 12, 13, 14
INIT, NEW_GROUP, DESTROY, MONITORED, SPLIT = range(32, 37)

class Record:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __repr__(self):
        return "Record(%s)" % ", ".join("%s=%r" % pair for pair in sorted(self.__dict__.items()))


class Group:
    __init__ = Record.__init__
    __repr__ = Record.__repr__


def _signed(value):
    return value - (1 << 32) if value >> 31 else value


class Box:
    def __init__(self, file):
        self.file = file
        with open(file, "rb") as source:
            data = source.read()
        self.words = words = struct.unpack("<%dQ" % (len(data) // 8), data[: len(data) // 8 * 8])
        if words[0] != MAGIC:
            raise ValueError("%s is not a black box" % file)
        self.version, self.pid = words[1], words[3]
        self.rank, self.world_size, self.local_rank = words[9] - 1, words[10], words[11] - 1
        self.closed = bool(words[13] & 1)
        self.step = words[44]
        self.job, self.layer = self._padded(48, 64), self._padded(72, 74)
        self.dropped = words[43], words[136]
        self.groups = {number: self._group(number) for number in range(1, words[37] + 1)}
        self.threads = [self._thread(i) for i in range(words[41])]
        self.records = list(self._records())

    def _padded(self, begin, end):
        return struct.pack("<%dQ" % (end - begin), *self.words[begin:end]).rstrip(b"\0").decode()

    def _bytes(self, number):
        if not number:
            return b""
        entry = self.words[self.words[24] + number - 1]
        if not entry & PUBLISHED:
            return b""
        at, length = (entry >> 20) & 0xFFFFFFFF, entry & 0xFFFFF
        begin = self.words[27] + at
        count = (length + 7) // 8
        return struct.pack("<%dQ" % count, *self.words[begin : begin + count])[:length]

    def text(self, number):
        return self._bytes(number).decode("utf-8", "replace")

    def site(self, number):
        """`(file, line, function)`; None: no site."""
        if not number:
            return None
        at = self.words[31 + 0] + (number - 1) * 4
        file, function = self.words[at] & 0xFFFFFFFF, self.words[at + 1]
        return self.text(file), function >> 32, self.text(function & 0xFFFFFFFF)

    def _first_word(self, number):
        return self.words[self.words[31] + (number - 1) * 4]

    def _caller(self, number):
        return (self._first_word(number) & ~(PUBLISHED | LIBRARY)) >> 32

    def callers(self, number):
        """The callers of a site, innermost first."""
        found = []
        while number:
            number = self._caller(number)
            found += [self.site(number)] if number else []
        return found

    def users(self, number):
        """`(number of the site in the user's program, sites in installed packages inside it, outermost first)`.

        Without a site in the program, the number is that of the outermost site.
        """
        via = []
        while number and self._first_word(number) & LIBRARY:
            caller = self._caller(number)
            if not caller:
                break
            via.insert(0, self.site(number))
            number = caller
        return number, via

    def _ranks(self, number):
        ranks = []
        for first, stride, count in struct.iter_unpack("<III", self._bytes(number)):
            ranks += [(first + stride * i) & 0xFFFFFFFF for i in range(count)]
        return ranks

    def _creation(self, name, dims):
        members, size, epoch, description, backend, takes_all = dims[:6]
        if not members:
            return None
        ranks = self._ranks(members)
        assert len(ranks) == size
        return Group(
            name=self.text(name),
            description=self.text(description),
            backend=self.text(backend),
            epoch=epoch,
            takes_all=takes_all,
            ranks=ranks,
        )

    def _group(self, number):
        at = self.words[35] + (number - 1) * 16
        name, description, members, size = self.words[at : at + 4]
        return Group(
            name=self.text(name & 0xFFFFFFFF),
            description=self.text(description & 0xFFFFFFFF),
            backend=self.text(description >> 32),
            epoch=members >> 32,
            ranks=self._ranks(members & 0xFFFFFFFF),
            size=size >> 32,
            destroyed=bool(self.words[at + 5]),
        )

    def _thread(self, i):
        at = self.words[39] + i * 8
        return Record(tid=self.words[at] & 0xFFFFFFFF, inside=self.words[at + 3] & 0xFF, site=self.words[at + 6])

    def _records(self):
        head, at, capacity = self.words[128], self.words[20], self.words[21]
        for ticket in range(max(0, head - capacity), head):
            begin = at + ticket % capacity * RECORD_WORDS
            if self.words[begin] != (ticket + 1) * 2:
                continue
            w = self.words[begin + 1 : begin + RECORD_WORDS]
            ndim = (w[1] >> 48) & 0xFF
            flags = (w[1] >> 32) & 0xFFFF
            dims = [half for word in w[8:13] for half in (word & 0xFFFFFFFF, word >> 32)]
            kind = KINDS[w[1] & 0xFF] if w[1] & 0xFF < len(KINDS) else LATER_KINDS[w[1] & 0xFF]
            sizes = [half for word in w[5:15] for half in (word & 0xFFFFFFFF, word >> 32)][:ndim]
            number = w[5] & 0xFFFFFFFF if kind not in OTHERWISE else 0
            line, via = self.users(number)
            yield Record(
                at=w[0],
                kind=kind,
                op=(w[1] >> 8) & 0xFF,
                dtype=(w[1] >> 16) & 0xFF,
                reduce_op=(w[1] >> 24) & 0xFF,
                flags=flags,
                group=w[2] & 0xFFFFFFFF,
                thread=w[2] >> 32,
                seq=w[3],
                call=w[4],
                site=self.site(line),
                via=via,
                callers=self.callers(line) if number else None,
                tensors=w[5] >> 32,
                root=_signed(w[6] & 0xFFFFFFFF),
                tag=_signed(w[6] >> 32),
                numel=w[7],
                shape=dims[:ndim] if flags & SHAPE else None,
                step=w[13] & 0xFFFFFFFF,
                phase=self.text(w[13] >> 32) if kind not in OTHERWISE else "",
                text=self.text(w[14] & 0xFFFFFFFF) if kind not in OTHERWISE else "",
                memory=[*w[5:14], w[14] - 1 if w[14] else UNKNOWN] if kind == "memory" else None,
                code=_signed(w[14] >> 32),
                sizes=sizes if kind == "splits" else None,
                creation=self._creation(w[14] & 0xFFFFFFFF, dims) if (w[1] >> 8) & 0xFF in CREATIONS else None,
            )

    def of(self, *kinds):
        return [record for record in self.records if record.kind in kinds]


def boxes(folder):
    """All black boxes in a folder, by rank."""
    found = []
    for name in sorted(os.listdir(folder)):
        try:
            found.append(Box(os.path.join(folder, name)))
        except (ValueError, IsADirectoryError):
            pass
    return sorted(found, key=lambda box: (box.rank, box.pid))
