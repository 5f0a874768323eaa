//! Space manager of one member (MBS-LVM section 2.3).
/// Buddy allocator.
#[derive(Debug)]
pub struct Buddy;
