//! What is found out about a model by looking at its neurons at work.

mod observe;
