//! A recording of a machine with four nodes of two CPUs. A disk is at home on node 1; a card on node 3, whose interrupts
//! arrive on CPU 0, and whose RSS table names one of its two queues. fio reads from the disk on CPU 6; one of its threads may be nowhere else.

use homenode_linux::affinity::record;
use homenode_linux::topology::Source;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

/// Long enough for the machine to change while it is looked at.
const PERIOD: Duration = Duration::from_millis(1500);

static RECORDING: LazyLock<PathBuf> = LazyLock::new(|| make("affinity-recording", false));
static WITH_POOL: LazyLock<PathBuf> = LazyLock::new(|| make("affinity-recording-pool", true));

/// The recording, for reading.
pub(crate) fn recording() -> &'static Path {
    &RECORDING
}

/// Arguments for a recording in which threads use a pool. cruncher copies 900 MB/s from node 2 and 100 from node 1, where it runs; fio-pinned copies
/// 500 MB/s of file 17, which has 8 MiB on node 0.
pub(crate) fn with_pool() -> [&'static str; 2] {
    ["--from", WITH_POOL.to_str().unwrap()]
}

pub(crate) fn from() -> [&'static str; 2] {
    ["--from", recording().to_str().unwrap()]
}

/// A copy that may be spoilt.
pub(crate) fn copy() -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("cp")
        .arg("-a")
        .arg(format!("{}/.", recording().display()))
        .arg(to.path())
        .status();
    assert!(status.unwrap().success());
    to
}

/// Where the next run makes it anew.
fn make(name: &str, has_pool: bool) -> PathBuf {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine(root.path().to_path_buf());
    machine.build();
    let at = |moment| {
        machine.at(moment);
        if has_pool {
            machine.pool(moment);
        }
    };
    at(0);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if directory.exists() {
        fs::remove_dir_all(&directory).unwrap();
    }
    let hardware = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies/guest-four-nodes.xml");
    thread::scope(|scope| {
        let look = || {
            record(
                &Source::Xml(hardware),
                root.path(),
                &directory,
                PERIOD,
                Box::new(Vec::new),
            )
            .unwrap()
        };
        let looking = scope.spawn(look);
        // The last thread is the last thing that is looked at when the period begins.
        let last = directory.join("0/proc/800/task/800/stat");
        while !last.exists() && !looking.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(100));
        at(1);
        looking.join().unwrap();
    });
    directory
}

struct Machine(PathBuf);

impl Machine {
    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn build(&self) {
        for cpu in ["online", "present", "possible"] {
            self.file(&format!("sys/devices/system/cpu/{cpu}"), "0-7\n");
        }
        let disk = "sys/block/nvme0n1";
        self.file(&format!("{disk}/numa_node"), "1\n");
        let card = "sys/class/net/eth0/device";
        self.file(&format!("{card}/numa_node"), "3\n");
        for (number, name) in lines() {
            let device = if name.starts_with("nvme") { disk } else { card };
            self.file(&format!("{device}/msi_irqs/{number}"), "msix\n");
            let (may, does) = match number {
                31..=38 => ((number - 31).to_string(), (number - 31).to_string()),
                _ => ("0-7".to_owned(), "0".to_owned()),
            };
            self.file(&format!("proc/irq/{number}/smp_affinity_list"), &format!("{may}\n"));
            self.file(
                &format!("proc/irq/{number}/effective_affinity_list"),
                &format!("{does}\n"),
            );
        }
        for queue in 0..8 {
            self.file(&format!("{disk}/mq/{queue}/cpu_list"), &format!("{queue}\n"));
        }
        for queue in 0..2 {
            let directory = "sys/class/net/eth0/queues";
            self.file(&format!("{directory}/rx-{queue}/rps_cpus"), "00\n");
            self.file(&format!("{directory}/tx-{queue}/xps_cpus"), "ff\n");
        }
        let none = serde_json::json!({"now": 0, "max": 0});
        let spread = serde_json::json!({
            "device": "eth0",
            "queues": {"combined": {"now": 2, "max": 8}, "receive": none, "transmit": none},
            "table": {"queues": 2, "entries": [1, 1, 1, 1]},
            "filters": null,
        });
        self.file("proc/ethtool/eth0", &spread.to_string());
    }

    /// The counts when the period begins, and when it ends two seconds later.
    fn at(&self, moment: u64) {
        let mut interrupts = (0..8).fold("     ".to_owned(), |line, cpu| line + &format!(" CPU{cpu}")) + "\n";
        for (number, name) in lines() {
            let arrived = |cpu: u32| match number {
                51..=54 if cpu == 0 => 40_000 * moment,
                37 if cpu == 6 => 20_000 * moment,
                _ => 0,
            };
            let counts: String = (0..8).map(|cpu| format!(" {}", arrived(cpu))).collect();
            writeln!(interrupts, "{number}:{counts} PCI-MSIX-0000:00:01.0 1-edge {name}").unwrap();
        }
        self.thread(700, 700, "fio", 0, 6, "0-7", moment);
        self.thread(700, 701, "fio-job", 600_000_000, 6, "0-7", moment);
        self.thread(700, 702, "fio-pinned", 400_000_000, 6, "6", moment);
        self.thread(800, 800, "cruncher\u{1b}[2J", 0, 2, "0-7", moment);
        self.file("proc/interrupts", &interrupts);
        self.file("proc/uptime", &format!("{}.00 0.00\n", 100 + 2 * moment));
    }

    /// Writes the counts of a pool's server at this moment.
    fn pool(&self, moment: u64) {
        let mb = 2_000_000 * moment;
        let tasks = serde_json::json!([{
            "pool": [0, 45],
            "answered": true,
            "counted_ms": 2000 * moment,
            "threads": [
                {"thread": 800, "started": 5000, "homes": [[1, 100 * mb], [2, 900 * mb]], "files": []},
                {"thread": 702, "started": 5000, "homes": [[0, 500 * mb]], "files": [[17, 500_000_000]]},
            ],
            "files": [{"inode": 17, "homes": [[0, 8 << 20]]}],
            "room": [[0, 0], [3, 1 << 30]],
            "unseen": [["reads that the page cache serves", "it is not asked"]],
        }]);
        self.file("proc/homenode/tasks", &tasks.to_string());
    }

    #[expect(clippy::too_many_arguments, reason = "what a thread is, in the order of its files")]
    fn thread(&self, process: u32, thread: u32, name: &str, bytes: u64, cpu: u32, mask: &str, moment: u64) {
        let directory = format!("proc/{process}/task/{thread}");
        let busy_ns = 1_000_000 + 400_000_000 * moment;
        self.file(&format!("{directory}/schedstat"), &format!("{busy_ns} 0 0\n"));
        let stat = format!(
            "{thread} ({name}) S 1 1 1 0 -1 4194304 0 0 0 0 9 9 0 0 20 0 1 0 5000 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 {cpu} 0 0\n"
        );
        self.file(&format!("{directory}/stat"), &stat);
        let read = bytes * moment;
        self.file(
            &format!("{directory}/io"),
            &format!("read_bytes: {read}\nwrite_bytes: 0\n"),
        );
        let status = format!("Name:\t{name}\nCpus_allowed_list:\t{mask}\n");
        self.file(&format!("{directory}/status"), &status);
        self.file(&format!("{directory}/cgroup"), "0::/\n");
        if process == thread {
            self.file(&format!("proc/{process}/comm"), &format!("{name}\n"));
        }
    }
}

fn lines() -> Vec<(u32, String)> {
    let disk = (1..=8).map(|queue| (30 + queue, format!("nvme0q{queue}")));
    let card = [
        "virtio2-input.0",
        "virtio2-output.0",
        "virtio2-input.1",
        "virtio2-output.1",
    ];
    let card = card
        .into_iter()
        .zip(51..)
        .map(|(name, number)| (number, name.to_owned()));
    disk.chain(card).collect()
}
