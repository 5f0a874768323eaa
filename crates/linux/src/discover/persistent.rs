//! Persistent memory and other memory that is a device: pmem disks, dax devices, and namespaces that are neither yet.

use super::disks;
use super::{InUse, Offer, OfferKind};
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;

const DAX: &str = "sys/bus/dax/devices";
const NAMESPACES: &str = "sys/bus/nd/devices";

pub(super) fn offers(tree: &Tree) -> Vec<Offer> {
    let mut offers = disks::named(tree, OfferKind::Pmem, |name| name.starts_with("pmem"));
    offers.extend(dax(tree));
    offers.extend(idle_namespaces(tree));
    offers
}

fn dax(tree: &Tree) -> Vec<Offer> {
    let device = |name: String| {
        let directory = format!("{DAX}/{name}");
        let bytes: u64 = tree.number(format!("{directory}/size")).filter(|bytes| *bytes > 0)?;
        let target = tree.number(format!("{directory}/target_node")).map(NodeId);
        let in_use = match tree.link_name(format!("{directory}/driver")).as_deref() {
            Some("kmem") => Some(InUse::SystemMemory(target)),
            Some(_) => None,
            None => Some(InUse::Mode(format!("no driver, `daxctl enable-device {name}`"))),
        };
        // numa_node is where the CPUs are from which it is near; target_node is the number its memory would have as a
        // node of its own.
        let home = tree.home(&directory).or(target);
        Some(Offer {
            path: Some(format!("/dev/{name}").into()),
            kind: OfferKind::Dax,
            free_bytes: None,
            home,
            bytes,
            in_use,
            name,
        })
    };
    tree.names(DAX).into_iter().filter_map(device).collect()
}

/// Namespaces with space that are neither a disk nor a dax device: nobody has set them up.
fn idle_namespaces(tree: &Tree) -> Vec<Offer> {
    let names = tree.names(NAMESPACES).into_iter();
    let namespaces = names.filter(|name| name.starts_with("namespace"));
    let idle = namespaces.filter(|name| {
        let directory = format!("{NAMESPACES}/{name}");
        let held = tree
            .text(format!("{directory}/holder"))
            .is_some_and(|holder| !holder.is_empty());
        !held && tree.names(format!("{directory}/block")).is_empty()
    });
    let offer = |name: String| {
        let directory = format!("{NAMESPACES}/{name}");
        let bytes: u64 = tree.number(format!("{directory}/size")).filter(|bytes| *bytes > 0)?;
        let mode = tree.text(format!("{directory}/mode")).unwrap_or_default();
        let mode = format!("mode {mode}, `ndctl create-namespace --force --reconfig={name} --mode=devdax`");
        Some(Offer {
            kind: OfferKind::Pmem,
            home: tree.home(&directory),
            bytes,
            free_bytes: None,
            path: None,
            in_use: Some(InUse::Mode(mode)),
            name,
        })
    };
    idle.filter_map(offer).collect()
}
