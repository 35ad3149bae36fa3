//! Prints the results in one of llama-bench's five formats, one row at a time.

use super::markdown::Columns;
use super::row::{Row, Value};
use crate::cli::args::{BenchSetup, OutputFormat};
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::version::BUILD;
use std::io::Write;

/// Prints rows on standard output and, if requested, on standard error.
#[derive(Debug)]
pub(super) struct Report {
    stdout: Printer,
    stderr: Option<Printer>,
    output: Output,
}

impl Report {
    pub(super) fn new(setup: &BenchSetup<'_>) -> Report {
        let printer = |format| Printer { format, columns: Columns::new(setup), n_rows: 0 };
        Report {
            stdout: printer(setup.args.output_format()),
            stderr: setup.args.output_err.map(printer),
            output: Output::stdout(),
        }
    }

    /// Prints the row of one test.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(super) fn row(&mut self, row: &Row<'_>) -> Result<(), Failure> {
        let text = self.stdout.row(row);
        if let Some(printer) = &mut self.stderr {
            // If standard error is closed, the failure cannot be reported anywhere.
            let _ = std::io::stderr().write_all(printer.row(row).as_bytes());
        }
        self.output.write(text)?;
        self.output.flush()
    }

    /// Prints the end of the document.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        if let Some(printer) = &self.stderr {
            let _ = std::io::stderr().write_all(printer.end().as_bytes());
        }
        self.output.write(self.stdout.end())?;
        self.output.flush()
    }
}

/// Formats results as one document; the header precedes the first row.
#[derive(Debug)]
struct Printer {
    format: OutputFormat,
    columns: Columns,
    n_rows: usize,
}

impl Printer {
    fn row(&mut self, row: &Row<'_>) -> String {
        let first = self.n_rows == 0;
        self.n_rows += 1;
        let fields = row.fields();
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let join = |values: Vec<String>, separator| values.join(separator);
        let values = |f: fn(&Value) -> String| fields.iter().map(|(_, v)| f(v)).collect::<Vec<_>>();
        match self.format {
            OutputFormat::Md => {
                let header = if first { self.columns.header() } else { String::new() };
                header + &self.columns.row(row)
            }
            OutputFormat::Csv => {
                let header = if first { names.join(",") + "\n" } else { String::new() };
                header + &join(values(csv), ",") + "\n"
            }
            OutputFormat::Json => {
                let object = serde_json::to_string_pretty(&object(row, &fields));
                let object = object.expect("keys are strings").replace('\n', "\n  ");
                let before = if first { "[\n" } else { ",\n" };
                format!("{before}  {object}")
            }
            OutputFormat::Jsonl => format!("{}\n", object(row, &fields)),
            OutputFormat::Sql => {
                let columns = fields.iter().map(|(name, v)| format!("  {name} {}", sql_type(v)));
                let columns = join(columns.collect(), ",\n");
                let create = format!("CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);\n\n");
                let (names, values) = (names.join(", "), join(values(sql), ", "));
                let insert = format!("INSERT INTO {TABLE} ({names}) VALUES ({values});\n");
                if first { create + &insert } else { insert }
            }
        }
    }

    fn end(&self) -> String {
        match (self.format, self.n_rows) {
            (OutputFormat::Md, 1..) => format!("\nbuild: {} (0)\n", *BUILD),
            (OutputFormat::Json, 1..) => "\n]\n".to_owned(),
            (OutputFormat::Md | OutputFormat::Json, 0)
            | (OutputFormat::Csv | OutputFormat::Jsonl | OutputFormat::Sql, _) => String::new(),
        }
    }
}

/// The table's name in current versions of llama-bench.
const TABLE: &str = "llama_bench";

/// A JSON object with all fields, then the time and rate of each repetition.
fn object(row: &Row<'_>, fields: &[(&'static str, Value)]) -> serde_json::Value {
    let mut object: serde_json::Map<_, _> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), json(value))).collect();
    object.insert("samples_ns".to_owned(), row.samples_ns().into());
    object.insert("samples_ts".to_owned(), row.samples_ts().into());
    object.into()
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Text(text) => text.clone().into(),
        Value::Int(n) => (*n).into(),
        Value::Real(x) => (*x).into(),
        Value::Bool(yes) => (*yes).into(),
    }
}

/// The value as unquoted text; `None` if the value is absent or not finite.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => text.clone(),
        Value::Int(n) => n.map(|n| n.to_string()),
        Value::Real(x) => x.filter(|x| x.is_finite()).map(|x| format!("{x:.6}")),
        Value::Bool(yes) => Some(u8::from(*yes).to_string()),
    }
}

fn csv(value: &Value) -> String {
    format!("\"{}\"", plain(value).unwrap_or_default().replace('"', "\"\""))
}

fn sql(value: &Value) -> String {
    let quote = |text: String| match value {
        Value::Text(_) => format!("'{}'", text.replace('\'', "''")),
        Value::Int(_) | Value::Real(_) | Value::Bool(_) => text,
    };
    plain(value).map_or_else(|| "NULL".to_owned(), quote)
}

fn sql_type(value: &Value) -> &'static str {
    match value {
        Value::Text(_) => "TEXT",
        Value::Int(_) | Value::Bool(_) => "INTEGER",
        Value::Real(_) => "REAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_do_not_end_a_value() {
        let text = |text: &str| Value::Text(Some(text.to_owned()));
        assert_eq!(csv(&text("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(sql(&text("it's")), "'it''s'");
        assert_eq!(sql(&text("1); DROP")), "'1); DROP'");
    }

    #[test]
    fn absent_values_are_empty_or_null() {
        let values = [Value::Int(None), Value::Real(None), Value::Real(Some(f64::NAN))];
        for value in values {
            let found = (csv(&value), sql(&value), json(&value));
            assert_eq!(found, ("\"\"".to_owned(), "NULL".to_owned(), serde_json::Value::Null));
        }
    }
}
