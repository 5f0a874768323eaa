"""Programs that are seen under `homenode run`: databases larger than their caches, YCSB and a build by Maven."""

import random
import re
import shutil
import subprocess
import zipfile

from .case import Case, run

ROWS = 200_000
YCSB = "github.com/pingcap/go-ycsb@v1.0.3"


class LargeSqlite(Case):
    """A table of 200,000 rows of 400 bytes, 90 MB, by sqlite3 as it is: a cache of 2 MB, and no mapping."""

    needs = {"sqlite3": "apt-get install sqlite3"}

    def __init__(self, journal):
        self.journal = journal

    def once(self, at):
        if self.database(at).exists():
            return
        rows = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS - 1})"
        self.sqlite(at, f"PRAGMA journal_mode = {self.journal};\nCREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);\n"
                        f"INSERT INTO t {rows} SELECT i, randomblob(400) FROM n;\n")

    def database(self, at):
        return at.directory / f"sqlite-{self.journal}"

    def sqlite(self, at, sql):
        return at.timed("sqlite3", "-batch", self.database(at), input=sql)

    def measure(self, at):
        return self.sqlite(at, self.work(random.Random(7)))


class SqliteTransactions(LargeSqlite):
    """4,000 transactions that look one row up, and change two, at random."""

    def work(self, numbers):
        def key():
            return numbers.randrange(ROWS)

        return "\n".join(f"BEGIN; SELECT length(v) FROM t WHERE k = {key()}; UPDATE t SET v = randomblob(400) WHERE k IN ({key()}, {key()}); COMMIT;"
                         for _ in range(4000))


class SqliteLookups(LargeSqlite):
    """20,000 rows looked up at random, each in a transaction of its own."""

    def work(self, numbers):
        return "\n".join(f"SELECT length(v) FROM t WHERE k = {numbers.randrange(ROWS)};" for _ in range(20_000))


class SqliteQueries(LargeSqlite):
    """A join by key that meets all rows, far from each other, and a sum over all."""

    def work(self, _numbers):
        keys = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS - 1})"
        return f"{keys} SELECT sum(length(v)) FROM n JOIN t ON t.k = i * 7919 % {ROWS};\nSELECT sum(length(v)) FROM t;\n"


class Ycsb(Case):
    """YCSB's workload A, half reads and half updates of 1 KB by a zipfian distribution, on 100,000 records in SQLite with a write-ahead log, by go-ycsb."""

    unit, scale = "us", 1e6
    needs = {"go-ycsb": f"go mod download {YCSB}, and in its directory: go build -tags libsqlite3 -o /usr/local/bin/go-ycsb ./cmd/go-ycsb"}

    def once(self, at):
        self.ycsb(at, "load", "batch.size=1000")

    def ycsb(self, at, what, *properties):
        settings = ["workload=core", "recordcount=100000", "operationcount=50000", "readproportion=0.5", "updateproportion=0.5", "requestdistribution=zipfian",
                    f"sqlite.db={at.directory}/ycsb", *properties]
        return at.run("go-ycsb", what, "sqlite", *(word for setting in settings for word in ("-p", setting)))

    def measure(self, at):
        return 1 / float(re.findall(r"^TOTAL .* OPS: ([0-9.]+)", self.ycsb(at, "run"), re.M)[-1])


class MavenBuild(Case):
    """Three libraries of Apache Commons, 260 sources, compiled and packed by Maven without a network, from a repository beside them."""

    unit, scale = "s", 1
    has_small_files = True
    needs = {"mvn": "apt-get install maven", "javac": "apt-get install default-jdk-headless"}
    libraries = {"commons-lang3": "3.14.0", "commons-text": "1.11.0", "commons-csv": "1.10.0"}

    def __init__(self):
        self.made = None

    def once(self, at):
        if self.made is None:
            self.make(at.directory)
            self.made = at.directory
        else:
            shutil.copytree(self.made / "maven", at.directory / "maven")

    def make(self, directory):
        """Writes the project, and has Maven fill the repository."""
        project = directory / "maven/project"
        for library, version in self.libraries.items():
            self.maven(directory, "dependency:get", "-Dtransitive=false", f"-Dartifact=org.apache.commons:{library}:{version}:jar:sources")
            packed = directory / f"maven/repository/org/apache/commons/{library}/{version}/{library}-{version}-sources.jar"
            with zipfile.ZipFile(packed) as sources:
                sources.extractall(project / library / "src/main/java")
            (project / library / "pom.xml").write_text(pom(library, parent=coordinates("all"), needs=["commons-lang3"] if library == "commons-text" else []))
        (project / "pom.xml").write_text(pom("all", modules=self.libraries))
        self.maven(directory, "package", "-f", project)

    def maven(self, directory, *arguments, start=run):
        return start("mvn", "--quiet", "--batch-mode", f"-Dmaven.repo.local={directory}/maven/repository", *arguments, stdin=subprocess.DEVNULL)

    def before(self, at):
        for made in (at.directory / "maven/project").glob("*/target"):
            shutil.rmtree(made)

    def measure(self, at):
        return self.maven(at.directory, "--offline", "package", "-f", at.directory / "maven/project", start=at.timed)


def coordinates(library):
    return f"<groupId>bench</groupId><artifactId>{library}</artifactId><version>1</version>"


def pom(library, parent=None, needs=(), modules=()):
    """A project's description."""
    parts = [f"<parent>{parent}</parent>"] if parent else ["<packaging>pom</packaging>"]
    parts += ["<modules>", *(f"<module>{module}</module>" for module in modules), "</modules>",
              "<dependencies>", *(f"<dependency>{coordinates(needed)}</dependency>" for needed in needs), "</dependencies>",
              "<properties><maven.compiler.source>8</maven.compiler.source><maven.compiler.target>8</maven.compiler.target>"
              "<project.build.sourceEncoding>ISO-8859-1</project.build.sourceEncoding></properties>"]
    return f"<project><modelVersion>4.0.0</modelVersion>{coordinates(library)}{''.join(parts)}</project>"
