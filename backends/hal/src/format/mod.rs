//! The quantisation formats: one table, one file each.
