//! Two threads and a ring: what comes out is what went in.

mod random;

use fastrand::Rng;
use homenode_shared::ring;

/// For each message that the ring has room for: a full ring ends in a switch of threads where they share a CPU.
const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };

#[test]
fn messages_arrive_once_and_in_order() {
    let seed = random::seed();
    for capacity in [1, 2, 64] {
        let messages = (capacity * ROUNDS) as u64;
        let (mut sender, mut receiver) = ring::<3>(capacity);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed);
                for number in 0..messages {
                    let mut message = [number, number * 3, !number];
                    while let Err(refused) = sender.push(message) {
                        message = refused;
                        sender.publish();
                        std::thread::yield_now();
                    }
                    if random.u64(..8) == 0 {
                        sender.publish();
                    }
                }
            });
            let mut random = Rng::with_seed(!seed);
            let mut expected = 0;
            while !receiver.is_closed() {
                let Some(message) = receiver.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(message, [expected, expected * 3, !expected]);
                expected += 1;
                if random.u64(..8) == 0 {
                    receiver.release();
                }
            }
            assert_eq!(expected, messages);
            assert_eq!(receiver.pop(), None);
        });
    }
}
