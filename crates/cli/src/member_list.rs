//! `homenode member list`: what this machine could give to a pool.

use crate::affinity::table::{Side, aligned};
use crate::failure::{Result, fail};
use crate::topology::human_bytes;
use homenode_linux::discover::{Offer, OfferKind, offers};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show the memory and disks that can become pool members, with the home node of each.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut offers = offers(Path::new("/"));
    if offers.is_empty() {
        fail!("found no memory to offer: is /sys mounted?");
    }
    for offer in &mut offers {
        if let (OfferKind::Dram | OfferKind::MemoryOnly, Some(home)) = (offer.kind, offer.home) {
            // The figure that a pool is checked against: less the node's reserve, within our control group.
            offer.free_bytes = homenode_linux::memory::free_bytes(home).ok().or(offer.free_bytes);
        }
    }
    if args.json {
        crate::print_json(&json(&offers))
    } else {
        crate::print_text(&table(&offers))
    }
}

#[derive(Serialize)]
struct Members<'a> {
    output_version: u32,
    members: Vec<Member<'a>>,
}

#[derive(Serialize)]
struct Member<'a> {
    name: &'a str,
    kind: String,
    home: Option<u16>,
    bytes: u64,
    free_bytes: Option<u64>,
    path: Option<&'a PathBuf>,
    /// Why it cannot be a member now.
    in_use: Option<String>,
}

fn json(offers: &[Offer]) -> Members<'_> {
    let member = |offer: &Offer| offer.in_use.as_ref().map(ToString::to_string);
    let members = offers.iter().map(|offer| Member {
        name: &offer.name,
        kind: offer.kind.to_string(),
        home: offer.home.map(|home| home.0),
        bytes: offer.bytes,
        free_bytes: offer.free_bytes,
        path: offer.path.as_ref(),
        in_use: member(offer),
    });
    Members {
        output_version: 1,
        members: members.collect(),
    }
}

fn table(offers: &[Offer]) -> String {
    let heading = ["MEMBER", "KIND", "HOME", "SIZE", "FREE", "STATE"].map(str::to_owned);
    let row = |offer: &Offer| {
        [
            offer.name.clone(),
            offer.kind.to_string(),
            offer.home.map_or_else(|| "unknown".to_owned(), |home| home.to_string()),
            human_bytes(offer.bytes),
            offer.free_bytes.map_or_else(|| "-".to_owned(), human_bytes),
            offer
                .in_use
                .as_ref()
                .map_or_else(|| "available".to_owned(), ToString::to_string),
        ]
    };
    let rows: Vec<[String; 6]> = [heading].into_iter().chain(offers.iter().map(row)).collect();
    let [left, right] = [Side::Left, Side::Right];
    aligned([left, left, left, right, right, left], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::discover::InUse;
    use homenode_policy::NodeId;

    fn two() -> [Offer; 2] {
        [
            Offer {
                name: "node0".to_owned(),
                kind: OfferKind::Dram,
                home: Some(NodeId(0)),
                bytes: 16 << 30,
                free_bytes: Some(9 << 30),
                path: None,
                in_use: None,
            },
            Offer {
                name: "nvme0n1".to_owned(),
                kind: OfferKind::Nvme,
                home: None,
                bytes: 512 << 30,
                free_bytes: None,
                path: Some("/dev/nvme0n1".into()),
                in_use: Some(InUse::Mounted("/".to_owned())),
            },
        ]
    }

    #[test]
    fn a_table_for_a_person() {
        let expected = "\
MEMBER   KIND  HOME         SIZE     FREE  STATE
node0    dram  node 0   16.0 GiB  9.0 GiB  available
nvme0n1  nvme  unknown   512 GiB        -  mounted on /
";
        assert_eq!(table(&two()), expected);
    }

    #[test]
    fn json_for_a_program() {
        let value = serde_json::to_value(json(&two())).unwrap();
        assert_eq!(value["output_version"], 1);
        assert_eq!(value["members"][0]["free_bytes"], 9_u64 << 30);
        assert_eq!(value["members"][0]["in_use"], serde_json::Value::Null);
        assert_eq!(value["members"][1]["home"], serde_json::Value::Null);
        assert_eq!(value["members"][1]["path"], "/dev/nvme0n1");
        assert_eq!(value["members"][1]["in_use"], "mounted on /");
    }
}
