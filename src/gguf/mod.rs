//! GGUF and PowerInfer containers.
