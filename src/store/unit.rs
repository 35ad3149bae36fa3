//! Units: what is read and evicted at once, and where their bytes are.

use std::ops::Range;
use std::sync::Arc;

use hal::{Bytes, RowPlace, RowTable};

use crate::reader::{Ticket, pages};
use crate::region::PAGE;

/// Bytes of one of the store's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the file.
    pub file: usize,
    /// The bytes in the file.
    pub range: Range<u64>,
}

impl Piece {
    /// Memory of the piece when it is resident: whole pages.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        let pages = pages(&self.range);
        Bytes(pages.end - pages.start)
    }
}

/// A matrix whose rows are units.
#[derive(Clone, Debug)]
pub struct RowMatrix {
    /// All rows.
    pub piece: Piece,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Where the rows are in the memory of the file ([`crate::Store::row_table`]); `None` if that is
    /// in order. With it, rows take the places of others.
    pub table: Option<RowTable>,
}

impl RowMatrix {
    /// Puts all rows in order.
    pub(crate) fn set_in_order(&self) {
        for (row, place) in self.table.iter().flat_map(|table| table.iter().enumerate()) {
            place.set(self.row(row).range.start);
        }
    }

    /// The bytes of a row.
    #[must_use]
    pub fn row(&self, row: usize) -> Piece {
        let start = self.piece.range.start + self.row_bytes * row as u64;
        Piece { file: self.piece.file, range: start..start + self.row_bytes }
    }
}

/// Where a unit's bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Sorted by file and offset.
    Pieces(Box<[Piece]>),
    /// A row of each matrix of a set. A model has hundreds of thousands of these units, so they share
    /// the list.
    Row { set: u32, row: u32 },
}

#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) place: Place,
    pub(crate) probability: f32,
    /// Whether look-ahead ordered the unit and nothing has used it since.
    pub(crate) unused: bool,
    pub(crate) state: State,
    /// The call of [`crate::Store::ensure`] that last needed the unit, or ordered it ahead after
    /// that.
    pub(crate) needed_by: u64,
}

impl Unit {
    pub(crate) fn new(place: Place, probability: f64) -> Unit {
        let (unused, state, needed_by) = (false, State::Absent, 0);
        Unit { place, probability: probability as f32, unused, state, needed_by }
    }

    /// Whether the unit is small: its read is joined with those of its neighbours.
    pub(crate) fn is_row(&self) -> bool {
        matches!(self.place, Place::Row { .. })
    }
}

#[derive(Debug)]
pub(crate) enum State {
    Absent,
    Reading(Arc<Ticket>),
    Resident,
}

/// Units, and the matrices of units that are rows.
#[derive(Debug, Default)]
pub(crate) struct Units {
    pub(crate) all: Vec<Unit>,
    sets: Vec<Box<[RowMatrix]>>,
}

impl Units {
    pub(crate) fn clear(&mut self) {
        self.sets.iter().flatten().for_each(RowMatrix::set_in_order);
        self.all.clear();
        self.sets.clear();
    }

    /// Adds a set of matrices with the same number of rows. Returns its number.
    pub(crate) fn add_set(&mut self, matrices: &[RowMatrix]) -> u32 {
        self.sets.push(matrices.into());
        self.sets.len() as u32 - 1
    }

    /// The piece of a unit with this number, and its place if that is in a table.
    fn part(&self, unit: usize, number: usize) -> Option<(Piece, Option<&RowPlace>)> {
        match &self.all[unit].place {
            Place::Pieces(pieces) => Some((pieces.get(number)?.clone(), None)),
            Place::Row { set, row } => {
                let (matrix, row) = (self.sets[*set as usize].get(number)?, *row as usize);
                Some((matrix.row(row), matrix.table.as_ref().map(|table| &table[row])))
            }
        }
    }

    /// The pieces of a unit, by file and offset, each with its place if that is in a table.
    pub(crate) fn parts(
        &self,
        unit: usize,
    ) -> impl Iterator<Item = (Piece, Option<&RowPlace>)> + '_ {
        (0..).map_while(move |number| self.part(unit, number))
    }

    /// The pieces of a unit, by file and offset.
    pub(crate) fn pieces(&self, unit: usize) -> impl Iterator<Item = Piece> + '_ {
        self.parts(unit).map(|(piece, _)| piece)
    }

    pub(crate) fn bytes(&self, unit: usize) -> Bytes {
        self.pieces(unit).map(|piece| piece.memory()).sum()
    }
}

/// The pages of `range` that may have bytes of others: the first and the last, unless they are
/// whole.
pub(crate) fn shared_pages(range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    let all = pages(range);
    let first = (all.start < range.start).then_some(all.start);
    let last = (all.end > range.end).then(|| all.end - PAGE);
    let one = first == last;
    first.into_iter().chain(last.filter(|_| !one))
}

/// The whole pages of `range`.
pub(crate) fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let start = range.start.next_multiple_of(PAGE);
    start..(range.end / PAGE * PAGE).max(start)
}
