//! Space: full pools, grants, reservations, starved nodes, fat members; members that come and go.

mod full;
mod members;
mod placement;
