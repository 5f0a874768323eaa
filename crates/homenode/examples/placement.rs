//! Where do bytes lie? A small pool, a file written by one thread, another written by all CPUs, and their maps.
//!
//! Run with `cargo run -p homenode --example placement`.

use homenode::{File, Pool, PoolOptions};
use std::error::Error;
use std::thread;

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = Pool::create(&PoolOptions::new().size_per_node("64M".parse()?))?;
    pool.create_dir("data")?;

    // One writer: everything lies on the node of its CPU.
    let file = pool.create_file("data/one-writer")?;
    let writer = file.clone();
    thread::spawn(move || writer.write_all_at(&vec![1; 8 * MIB], 0))
        .join()
        .expect("the writer does not panic")?;
    print_map("data/one-writer", &file);

    // A writer per CPU the process may use: each part lies where its writer ran.
    let file = pool.create_file("data/many-writers")?;
    let writers = thread::available_parallelism()?.get().min(16);
    thread::scope(|scope| {
        let write = |part: usize| file.write_all_at(&vec![2; MIB], (part * MIB) as u64);
        let writers: Vec<_> = (0..writers).map(|part| scope.spawn(move || write(part))).collect();
        writers
            .into_iter()
            .try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    print_map("data/many-writers", &file);

    // A file can be moved, also while it is in use.
    let node = file.map()[0].0;
    let moved = file.move_to(node)?;
    println!("moved {moved} bytes of data/many-writers to {node}");
    print_map("data/many-writers", &file);

    let mut check = vec![0; writers * MIB];
    assert!(
        file.read_exact_at(&mut check, 0)? && check.iter().all(|&byte| byte == 2),
        "the bytes are what was written"
    );

    let status = pool.status();
    for member in &status.members {
        println!(
            "{} on {}: {} of {} bytes used, {}",
            member.id, member.home, member.used_bytes, member.capacity_bytes, member.backing
        );
    }
    for cell in &status.accesses {
        let (written, read) = (cell.written_bytes, cell.read_bytes);
        println!(
            "CPUs of {} to memory of {}: {written} bytes written, {read} read",
            cell.from, cell.home
        );
    }
    Ok(())
}

fn print_map(name: &str, file: &File) {
    for (node, bytes) in file.map() {
        println!("{name}: {bytes} bytes on {node}");
    }
}
