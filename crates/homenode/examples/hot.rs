//! A hot path, for counting its instructions: `valgrind --tool=callgrind hot read|overwrite COUNT`.
//! Runs with two counts give one operation's instructions: the difference of their instructions divided by that of the counts.
use std::error::Error;

use homenode::{OpenOptions, Pool, PoolOptions, Size};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(what), Some(count)) = (words.next(), words.next()) else {
        return Err("usage: hot read|overwrite COUNT".into());
    };
    let count: u64 = count.parse()?;
    let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(64 << 20)))?;
    let file = pool.open("/hot", &OpenOptions::new().read(true).write(true).create(true))?;
    let mut bytes = [7; BLOCK];
    for block in 0..BLOCKS {
        file.write_all_at(&bytes, block * BLOCK as u64)?;
    }
    for step in 0..count {
        let at = (step * 5 + 3) % BLOCKS * BLOCK as u64;
        match what.as_str() {
            "read" => {
                file.read_exact_at(&mut bytes, at)?;
            }
            "overwrite" => {
                file.write_all_at(&bytes, at)?;
            }
            _ => return Err(format!("{what}: neither read nor overwrite").into()),
        }
    }
    Ok(())
}
