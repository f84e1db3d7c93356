//! The figures as pictures: how far each ratio is from its target.

use std::path::Path;

use plotters::prelude::*;

use crate::Outcome;
use crate::report::{Row, Target};

const SIZE: (u32, u32) = (900, 60);
const MET: RGBColor = RGBColor(46, 125, 50);
const MISSED: RGBColor = RGBColor(198, 40, 40);

/// Draws the rows of a section that have a target: a bar a row, its spread, and the target as a
/// line.
pub fn draw(folder: &Path, section: &str, rows: &[Row]) -> Outcome<()> {
    let rows: Vec<_> = rows.iter().filter_map(Bar::of).collect();
    if rows.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{section}.svg"));
    let height = SIZE.1 * rows.len() as u32 + 70;
    let area = SVGBackend::new(&path, (SIZE.0, height)).into_drawing_area();
    area.fill(&WHITE)?;
    // Everything in units of the target, so that one axis serves all rows.
    let widest = rows.iter().map(|bar| bar.most).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(35)
        .build_cartesian_2d(0.0..widest * 1.05, 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc("share of the target (bar: median, line: spread)")
        .draw()?;
    for (number, bar) in rows.iter().enumerate() {
        let bottom = (rows.len() - number - 1) as f64;
        let colour = if bar.met { MET } else { MISSED };
        chart.draw_series([Rectangle::new(
            [(0.0, bottom + 0.1), (bar.median, bottom + 0.55)],
            colour.mix(0.5).filled(),
        )])?;
        chart.draw_series([PathElement::new(
            vec![(bar.least, bottom + 0.325), (bar.most, bottom + 0.325)],
            colour.stroke_width(2),
        )])?;
        chart.draw_series([Text::new(
            bar.label.clone(),
            (0.0, bottom + 0.9),
            ("sans-serif", 14),
        )])?;
    }
    chart.draw_series([PathElement::new(
        vec![(1.0, 0.0), (1.0, rows.len() as f64)],
        BLACK.stroke_width(2),
    )])?;
    area.present()?;
    Ok(())
}

/// A row in units of its target.
struct Bar {
    label: String,
    least: f64,
    median: f64,
    most: f64,
    met: bool,
}

impl Bar {
    fn of(row: &Row) -> Option<Self> {
        let (bound, sign) = match row.target {
            Target::AtLeast(bound) => (bound, "≥"),
            Target::AtMost(bound) => (bound, "≤"),
            Target::None => return None,
        };
        let figure = &row.figure;
        let (median, unit) = (figure.median(), row.unit);
        Some(Self {
            label: format!(
                "{}: {median:.2} {unit} (target {sign} {bound} {unit})",
                row.what
            ),
            least: figure.least() / bound,
            median: median / bound,
            most: figure.most() / bound,
            met: row.is_met() == Some(true),
        })
    }
}
