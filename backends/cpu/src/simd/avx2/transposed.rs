//! Sums over neuron-major rows.

super::super::transposed::transposed_kernels!("avx2,fma,f16c");
