"""A private PostgreSQL and a small simple-query client, for the SQL tests and benches. Standard library only."""

import os
import pathlib
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile

SQL = pathlib.Path(__file__).resolve().parents[2] / "sql"


def binaries():
    """The folder of initdb and friends: $PG_BIN, else the newest of Debian's."""
    if "PG_BIN" in os.environ:
        return pathlib.Path(os.environ["PG_BIN"])
    return max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


class SqlError(Exception):
    """An ErrorResponse: `code` is the SQLSTATE."""

    def __init__(self, fields):
        super().__init__(f"{fields['C']} {fields['M']} {fields.get('D', '')}")
        self.code = fields["C"]


def literal(value):
    """A value as an SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, (list, tuple)):
        return "'{" + ",".join("NULL" if item is None else f'"{item}"' for item in value) + "}'"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


class Connection:
    """One session over the Unix socket."""

    def __init__(self, folder, database="postgres"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{folder}/.s.PGSQL.5432")
        self.file = self.socket.makefile("rb")
        body = struct.pack("!i", 196608) + f"user\0postgres\0database\0{database}\0\0".encode()
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self._finish()
        self.prepared = set()

    def _message(self):
        kind = self.file.read(1)
        if not kind:
            raise ConnectionError("server closed the connection")
        size = struct.unpack("!i", self.file.read(4))[0]
        return kind, self.file.read(size - 4)

    def _finish(self):
        rows, tag, error = [], "", None
        while True:
            kind, body = self._message()
            if kind == b"D":
                rows.append(self._row(body))
            elif kind == b"C":
                tag = body[:-1].decode()
            elif kind == b"E":
                error = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
            elif kind == b"Z":
                if error:
                    raise SqlError(error)
                return rows, tag

    @staticmethod
    def _row(body):
        count, at, row = struct.unpack("!h", body[:2])[0], 2, []
        for _ in range(count):
            size = struct.unpack("!i", body[at:at + 4])[0]
            at += 4
            row.append(None if size < 0 else body[at:at + size].decode())
            at += max(size, 0)
        return row

    def query(self, text):
        """Rows (text or None) and the last command tag."""
        data = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(data) + 4) + data)
        return self._finish()

    def rows(self, text):
        return self.query(text)[0]

    def run(self, path, *args):
        """Runs sql/<path>.sql as a prepared statement; answers its rows and the affected count."""
        name = path.replace("/", "_")
        if name not in self.prepared:
            self.query(f"PREPARE {name} AS " + (SQL / f"{path}.sql").read_text())
            self.prepared.add(name)
        rows, tag = self.query(f"EXECUTE {name}" + (f"({','.join(map(literal, args))})" if args else ""))
        return rows, int(tag.split()[-1])

    def close(self):
        self.file.close()
        self.socket.close()


class PrivatePostgres:
    """A migrated PostgreSQL in a folder of its own, gone at the end of the `with`. Runs as `postgres` when we are root."""

    def __init__(self, **settings):
        self.settings = {"listen_addresses": "", "max_connections": 100, **settings}

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="seckill-postgres-")
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        self._run("initdb", "-D", f"{self.folder}/data", "-U", "postgres", "-A", "trust", "--no-locale", "-E", "UTF8", "-N")
        with open(f"{self.folder}/data/postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(f"unix_socket_directories = '{self.folder}'\n")
            conf.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-w", "start")
        return self

    def _run(self, program, *args):
        subprocess.run([str(binaries() / program), *args], check=True, user=self.user, cwd=self.folder,
                       stdout=subprocess.DEVNULL)

    def connect(self, database="postgres"):
        return Connection(self.folder, database)

    def migrate(self, database="postgres"):
        connection = self.connect(database)
        for path in [SQL / "schema_migrations.sql", *sorted((SQL / "migrations").glob("*.sql"))]:
            connection.query(path.read_text())
        connection.close()

    def __exit__(self, *_):
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)
