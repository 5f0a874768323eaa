//! Columns as wide as their widest cell. The last one is as it comes.

/// A column's side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

pub(crate) fn aligned<const N: usize>(sides: [Side; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, side), width) in row.iter().zip(sides).zip(widths) {
            line += &match side {
                Side::Left => format!("{cell:<width$}  "),
                Side::Right => format!("{cell:>width$}  "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_aligned_columns() {
        let rows = [["a", "b", "c"], ["long", "10", ""], ["", "7", "last one"]].map(|row| row.map(str::to_owned));
        let text = aligned([Side::Left, Side::Right, Side::Left], &rows);
        assert_eq!(text, "a      b  c\nlong  10\n       7  last one\n");
        assert_eq!(aligned([Side::Left], &[]), "");
    }
}
