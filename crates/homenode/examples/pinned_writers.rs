//! A writer of a file pinned to each of some CPUs, and the pool kept for others to look at where the bytes lie.
//!
//! `pinned_writers BYTES BLOCK_BYTES native|none CPU:PREFIX...`: the file PREFIX is filled with PREFIX, over and over, from
//! that CPU; `native` has the first CPU promise the blocks of all files before, as fio does. Then each line of its standard
//! input is answered by lines of words: `wrote PREFIX NODE BYTES` for each node with bytes of it, `member HOME USED POPULATED`,
//! `access FROM HOME WRITTEN`, and last `end`. It ends when that input does.

use homenode::{Allocate, CpuId, File, Pool, PoolOptions};
use homenode_linux::cpu::pin_to_cpu;
use std::error::Error;
use std::{env, io, thread};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Writer {
    cpu: CpuId,
    prefix: String,
    file: File,
}

impl Writer {
    fn new(pool: &Pool, word: &str) -> Result<Self> {
        let (cpu, prefix) = word.split_once(':').ok_or("a writer is CPU:PREFIX")?;
        let file = pool.create_file(prefix)?;
        Ok(Self {
            cpu: CpuId(cpu.parse()?),
            prefix: prefix.to_owned(),
            file,
        })
    }

    fn write(&self, bytes: u64, block_bytes: usize) -> Result<()> {
        pin_to_cpu(self.cpu)?;
        let block: Vec<u8> = self.prefix.bytes().cycle().take(block_bytes).collect();
        (0..bytes)
            .step_by(block_bytes)
            .try_for_each(|offset| self.file.write_all_at(&block, offset))?;
        Ok(())
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [bytes, block_bytes, fallocate, writers @ ..] = &words[..] else {
        return Err("pinned_writers BYTES BLOCK_BYTES native|none CPU:PREFIX...".into());
    };
    let (bytes, block_bytes) = (bytes.parse()?, block_bytes.parse()?);
    let pool = Pool::create(&PoolOptions::new().size_per_node("64M".parse()?))?;
    let writers: Vec<_> = writers
        .iter()
        .map(|word| Writer::new(&pool, word))
        .collect::<Result<_>>()?;
    pin_to_cpu(writers.first().ok_or("there is no writer")?.cpu)?;
    if fallocate == "native" {
        for writer in &writers {
            writer.file.allocate(Allocate::Reserve, 0, bytes)?;
        }
    }
    thread::scope(|scope| {
        let write = |writer| scope.spawn(move || Writer::write(writer, bytes, block_bytes));
        let writing: Vec<_> = writers.iter().map(write).collect();
        writing
            .into_iter()
            .try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    for line in io::stdin().lines() {
        line?;
        tell(&pool, &writers);
    }
    Ok(())
}

fn tell(pool: &Pool, writers: &[Writer]) {
    for writer in writers {
        for (node, bytes) in writer.file.map() {
            println!("wrote {} {} {bytes}", writer.prefix, node.0);
        }
    }
    let status = pool.status();
    for member in &status.members {
        println!(
            "member {} {} {}",
            member.home.0, member.used_bytes, member.populated_bytes
        );
    }
    for cell in &status.accesses {
        println!("access {} {} {}", cell.from.0, cell.home.0, cell.written_bytes);
    }
    println!("end");
}
