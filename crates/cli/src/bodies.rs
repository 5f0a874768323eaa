//! The engine's table of operations, as JSON: whether files, volumes and other kinds of inodes support them.

use homenode::{BodyKind, BodyOperation};
use std::collections::BTreeMap;

/// Answers by kind of body and operation: `yes`, or the name of the errno that refuses it.
pub(crate) type Answers = BTreeMap<String, BTreeMap<String, String>>;

/// The whole table.
pub(crate) fn answers() -> Answers {
    let answer = |kind: BodyKind, operation: BodyOperation| match kind.supports(operation) {
        Ok(()) => "yes",
        Err(error) => error.name(),
    };
    let row = |kind: BodyKind| {
        let cells =
            BodyOperation::ALL.map(|operation| (operation.name().to_owned(), answer(kind, operation).to_owned()));
        (kind.name().to_owned(), cells.into())
    };
    BodyKind::ALL.map(row).into()
}
