"""An upload to HDFS by ways to place interrupts: see trials/hdfs.py."""

import subprocess

from tests.support import LAB
from trial import TrialTest

MACHINE = (
    *("--net", "node=1,queues=4", "--net", "node=3,queues=4", "--net", "node=0,queues=4", "--source"),
    *("--nvme", "node=1,queues=8,size=4G", "--nvme", "node=3,queues=8,size=4G", "--mem", "1G", "--module", "ext4"),
)
SOURCES = LAB.parent / "scripts/engines/hadoop"


class Hdfs(TrialTest):
    """Its trial, with the Hadoop of scripts/engines.sh."""

    def test_bytes_and_interrupts_are_at_home(self):
        found = self.directory / "classpath"
        words = ["mvn", "--quiet", "--batch-mode", "--file", SOURCES / "pom.xml", "dependency:build-classpath"]
        subprocess.run([*words, f"-Dmdep.outputFile={found}"], check=True, stdout=subprocess.DEVNULL)
        classes = self.directory / "classes"
        subprocess.run(["javac", "-cp", found.read_text(), "-d", classes, *SOURCES.glob("*.java")], check=True)
        told = self.passes("hdfs.py", f"{classes}:{found.read_text().strip()}", options=(*MACHINE, "--kernel", "6.18"), seconds=4000)
        print(*(line for line in told.splitlines() if "_home_percent" in line), sep="\n")
