//! slots (skeleton)
use std::sync::Arc;
/// The table of slots.
#[derive(Debug, Default)]
pub struct Slots;
impl Slots {
    /// Claims a slot for the calling thread.
    pub fn claim(self: &Arc<Self>) -> Option<Slot> {
        unimplemented!()
    }
}
/// One thread's slot.
#[derive(Debug)]
pub struct Slot;
