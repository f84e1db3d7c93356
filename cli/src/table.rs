//! Columns that line up.

/// Rows of cells; the first row is the heading. `paint` colors a cell.
pub fn table(rows: &[Vec<String>], paint: impl Fn(usize, usize, &str) -> String) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let last = column + 1 == row.len();
            let padding = if last {
                0
            } else {
                widths[column].saturating_sub(cell.chars().count()) + 2
            };
            line.push_str(&paint(number, column, cell));
            line.push_str(&" ".repeat(padding));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "b"]), row(["long", ""])];
        assert_eq!(
            table(&rows, |_, _, cell| cell.to_owned()),
            "a     b\nlong\n"
        );
    }
}
