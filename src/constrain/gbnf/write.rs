//! Writes rules in Lark: regular expressions become terminals, other rules stay rules.

use std::fmt::Write;

use super::{Expr, Rules};
use crate::Error;
use crate::vocabulary::quoted;

pub(super) fn write(rules: &Rules) -> Result<String, Error> {
    let mut writer = Writer { regular: regular_rules(rules), lark: String::new(), n_terminals: 0 };
    let _ = writeln!(writer.lark, "start: {}", writer.name(rules.root));
    for (index, rule) in rules.rules.iter().enumerate() {
        let Some(expr) = &rule.expr else { continue };
        let body = if writer.regular[index] { writer.terminal(expr) } else { writer.expr(expr) };
        let _ = writeln!(writer.lark, "{}: {body}", writer.name(index));
    }
    Ok(writer.lark)
}

/// For each rule, whether it is a regular expression: it refers only to rules that are regular
/// expressions, and to no tokens.
fn regular_rules(rules: &Rules) -> Vec<bool> {
    let n = rules.rules.len();
    let mut n_open = vec![0usize; n];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (index, rule) in rules.rules.iter().enumerate() {
        let mut tokens = 0;
        rule.expr.iter().for_each(|expr| {
            references(expr, &mut |used| match used {
                Some(used) => {
                    users[used].push(index);
                    n_open[index] += 1;
                }
                None => tokens += 1,
            });
        });
        // A rule with tokens is never regular: its count does not reach zero.
        n_open[index] += tokens;
    }
    let mut regular = vec![false; n];
    let mut ready: Vec<usize> = (0..n).filter(|index| n_open[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        regular[index] = true;
        for user in std::mem::take(&mut users[index]) {
            n_open[user] -= 1;
            if n_open[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

/// Calls `each` with every rule that `expr` refers to, and with `None` for every token.
fn references(expr: &Expr, each: &mut impl FnMut(Option<usize>)) {
    match expr {
        Expr::Literal(_) | Expr::Class { .. } | Expr::Any => {}
        Expr::Token { .. } => each(None),
        Expr::Rule(index) => each(Some(*index)),
        Expr::Sequence(all) | Expr::Alternatives(all) => {
            all.iter().for_each(|expr| references(expr, each));
        }
        Expr::Repeat(expr, ..) => references(expr, each),
    }
}

struct Writer {
    regular: Vec<bool>,
    lark: String,
    n_terminals: usize,
}

impl Writer {
    /// Lark's name of a rule: capital letters are terminals.
    fn name(&self, index: usize) -> String {
        if self.regular[index] { format!("T{index}") } else { format!("r{index}") }
    }

    fn is_regular(&self, expr: &Expr) -> bool {
        let mut is_regular = true;
        references(expr, &mut |used| is_regular &= used.is_some_and(|index| self.regular[index]));
        is_regular
    }

    /// The body of a terminal.
    fn terminal(&self, expr: &Expr) -> String {
        match expr {
            Expr::Literal(text) => quoted(text),
            Expr::Class { negated, ranges } => class(*negated, ranges),
            Expr::Any => "/(?s:.)/".into(),
            Expr::Rule(index) => self.name(*index),
            Expr::Sequence(all) if all.is_empty() => r#""""#.into(),
            Expr::Sequence(all) => joined(all.iter().map(|expr| self.terminal(expr)), " "),
            Expr::Alternatives(all) => joined(all.iter().map(|expr| self.terminal(expr)), " | "),
            Expr::Repeat(expr, least, most) => repeat(&self.terminal(expr), *least, *most),
            // Not a regular expression, so `expr` writes it.
            Expr::Token { .. } => String::new(),
        }
    }

    /// The body of a rule.
    fn expr(&mut self, expr: &Expr) -> String {
        if self.is_regular(expr) {
            return self.regular_run(std::slice::from_ref(expr));
        }
        match expr {
            Expr::Token { negated, ids } => {
                let not = if *negated { "^" } else { "" };
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                format!("<[{not}{}]>", ids.join(","))
            }
            Expr::Rule(index) => self.name(*index),
            Expr::Sequence(all) => {
                let mut written = Vec::new();
                let both = |a: &Expr, b: &Expr| self.is_regular(a) && self.is_regular(b);
                let runs: Vec<&[Expr]> = all.chunk_by(both).collect();
                for run in runs {
                    written.push(match run {
                        [one] => self.expr(one),
                        run => self.regular_run(run),
                    });
                }
                joined(written.into_iter(), " ")
            }
            Expr::Alternatives(all) => {
                let (one, other): (Vec<&Expr>, _) = all.iter().partition(|e| self.is_regular(e));
                let mut written: Vec<String> = other.into_iter().map(|e| self.expr(e)).collect();
                let regular: Vec<Expr> = one.into_iter().cloned().collect();
                let (empty, regular) = regular.into_iter().partition(is_empty);
                let (empty, regular): (Vec<Expr>, Vec<Expr>) = (empty, regular);
                if !regular.is_empty() {
                    written.push(self.regular_run(&[Expr::Alternatives(regular)]));
                }
                if !empty.is_empty() {
                    written.push(r#""""#.into());
                }
                joined(written.into_iter(), " | ")
            }
            Expr::Repeat(expr, least, most) => {
                let inner = self.expr(expr);
                repeat(&inner, *least, *most)
            }
            // Regular expressions were written above.
            Expr::Literal(_) | Expr::Class { .. } | Expr::Any => String::new(),
        }
    }

    /// A symbol for consecutive regular expressions: `""`, a rule's name, or a new terminal.
    fn regular_run(&mut self, run: &[Expr]) -> String {
        match run {
            [only] if is_empty(only) => return r#""""#.into(),
            [Expr::Rule(index)] => return self.name(*index),
            _ => {}
        }
        let body = joined(run.iter().map(|expr| self.terminal(expr)), " ");
        let name = format!("X{}", self.n_terminals);
        self.n_terminals += 1;
        let _ = writeln!(self.lark, "{name}: {body}");
        name
    }
}

/// Whether the expression matches only the empty text, without following references to rules.
fn is_empty(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(text) => text.is_empty(),
        Expr::Sequence(all) | Expr::Alternatives(all) => all.iter().all(is_empty),
        Expr::Repeat(expr, _, most) => *most == Some(0) || is_empty(expr),
        Expr::Class { .. } | Expr::Any | Expr::Token { .. } | Expr::Rule(_) => false,
    }
}

fn joined(all: impl Iterator<Item = String>, by: &str) -> String {
    format!("({})", all.collect::<Vec<_>>().join(by))
}

fn repeat(inner: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => format!("({inner})*"),
        (1, None) => format!("({inner})+"),
        (0, Some(1)) => format!("({inner})?"),
        (_, Some(0)) => r#""""#.into(),
        (least, None) => format!("({inner}){{{least},}}"),
        (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
    }
}

/// A character class as a regular expression, with every character written as its code point.
fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut class = String::from(if negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        let _ = write!(class, "\\x{{{:X}}}", u32::from(*first));
        if last != first {
            let _ = write!(class, "-\\x{{{:X}}}", u32::from(*last));
        }
    }
    class + "]/"
}
