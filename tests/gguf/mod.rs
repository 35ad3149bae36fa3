//! The container: real files, round trips, and files that lie.

mod real;
