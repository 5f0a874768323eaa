//! Tiny.
use homenode::{OpenOptions, Pool, PoolOptions, Size};
fn main() {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap();
    let count: u64 = words.next().unwrap().parse().unwrap();
    let pool = Pool::create(&PoolOptions::new().size_per_node(Size::Bytes(64 << 20))).unwrap();
    let file = pool
        .open("/f", &OpenOptions::new().read(true).write(true).create(true))
        .unwrap();
    let mut bytes = [7u8; 4096];
    for at in 0..2048u64 {
        file.write_all_at(&bytes, at * 4096).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    for n in 0..count {
        let at = (n * 5 + 3) % 2048 * 4096;
        if what == "read" {
            file.read_exact_at(&mut bytes, at).unwrap();
        } else {
            file.write_all_at(&bytes, at).unwrap();
        }
    }
    println!("{}", bytes[5]);
    std::mem::forget(pool);
    std::process::exit(0);
}
