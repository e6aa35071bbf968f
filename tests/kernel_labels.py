"""200 kernel names with the span class that a person gave them by reading, apart from any rule. Holds data only.

124 are all names of the public traces that tests may read in place, kept as digests of the names; 76 are names of
kernels that serving engines and their libraries launch. Letters: C compute, E compute.elementwise, A attention, N
communication, K copy. Where a name leaves a choice: parts of a matrix product or convolution (split-k reductions,
offsets) are compute, sorting and padding around experts is elementwise, writing and loading of KV is copy.
"""

from hashlib import blake2b

CLASSES = {
    "C": "compute",
    "E": "compute.elementwise",
    "A": "attention",
    "N": "communication",
    "K": "copy",
}


def digest(name: str) -> str:
    """Of a kernel's name, 12 hexadecimal digits."""
    return blake2b(name.encode(), digest_size=6).hexdigest()


_DIGESTS = """
a189cff072ebC 7d0b24d36b32C a413762a6381C 8977f272e7a5C 717f77bbe326C 61bebf9229f2C 4cb467800fa2C
5f7a6fafa3aaC 06542c10d893C 589dc5889511C b0d9accf6f89E 5b08cb34d6b7E caf238c76b93E 568ba9f16464E
1bb8eb2194f7E 8b66a579706eC 0cff312cefe7C 452f6c7e631dC 077fa602cf70C 6cbef3b3df97E 921949104e58E
da8e6dbda1f0C 6c52d3172444C 58d9e99a3264C 0f4a09bcfe72A ac024053cf4eA fa4016e8df98N a1e173437a4bN
9ec93c519f99A cae88a3c8c3dC 834dcd61d49eC 020ec6e5ad40C ffb364802117C b22cd3017d8aC b81a031b6b4bC
f283118648fcC f9622a9f66cbC 741759c4b89eC 7e6e3a39488bC 5f7b5f54238dC f30cd3ae6e34E 67f266a8956fE
7ac329c51e27E 62d93ea56b2fE f55a9f9bdbebE 7f08595aee38E 5fc013c7e60bE 97ac6ed7399eE 57e891e16410E
4b4244e9b76aE d13067e6fefcE f79768727e2dE dce142167edbE 6a0c5a3e452eE 58e4cc103103E f220c96c6caaE
aa1d1ed379bfE bf55e4453c5eE 7069931a6ab7E f0f3b26eab73E aec1a5ddce02E 6f82a55a5a8cE 3d06a346d499E
c548a969e9d4E b956a2a4dc11E c71fba459363E b9895aa7ba4aE 98e0ad17e8f4E c5716a413dcaE 3b5325b325bcE
29242813d996E beb29e355898E e382acec12f7E a572514bce9aE 3ea38a3704ebE f59447a5155fE 0ba26d613b9fE
8c48823dd65eE 14996ff93cf2E bff30ab9c4eaE 76ae0047da7bE cd38899c98e6E 62fce52aa0deE 653619421ca1E
bd6ca55ca48cE b278bff0e713E 3f20a0fa4484E 4a5d7acfe932E ba682217ff1aE 708c541594a3C 8ad03b868450C
b035652b930cC 2abe9110908fE 0c5f9b3ea7e6E f914151d907bE 6cfdb6684938E 217637ae574fE d300862b62ffE
85d76531778eE 88f3ffc4a819E 67d888ccddffC a0b41c815a41E 4e614fa33344E 85f5f32ea571C 5ca1ea77295aC
5a253f9fb184C 3584129f37eaC d22acddaed5cC 0b75f9e92678C 2caf7162bb63C 9c12e08f97d2C 446f1cd476cbC
dec42fcc3199C a248dcdb1449C 7fad5209b4a7C 02c24c866572C 06897f3393d4C 5be8117c8d8cC 5378a97fd889C
54eaf6e389ddC fb01bca728b5C 776220865cbeA be736e559a8eK 41642e680528E
"""
_NAMES = """
A void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16, 128>
A void vllm::paged_attention_v2_reduce_kernel<unsigned short, 128, 128, 512>
A void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>
A void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>
A void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>
A void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 8u>
A void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1>>
A fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext
A void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>
A flash_fwd_mla_combine_kernel
A _ZN5aiter30fmha_fwd_hd128_bf16_causal_groupE
A _ZN5aiter21mla_dec_stage1_bf16_a16w16E
A _fwd_grouped_kernel_stage1
A _fwd_kernel_stage2
A void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u>
C fused_moe_kernel
C fused_moe_kernel_gptq_awq
C void marlin::Marlin<nv_bfloat16, 1125899906843648l, 256, 4, 16, 4>
C void marlin_moe_wna16::Marlin<nv_bfloat16, 256, 1, 8, 8>
C void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 4>
C void cutlass::device_kernel<vllm::cutlass_3x_gemm_fp8_blockwise<cutlass::bfloat16_t>::GemmKernel>
C sm90_fp8_gemm_1d2d_impl
C nvjet_tst_128x64_64x8_1x2_h_bz_TNT
C void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4>
C void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>
C ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn
C cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8
C triton_tem_fused_mm_t_3
C void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 4>
C void wvSpltK_hf_big_<__hip_bfloat16, 64, 2, 16, 8, 2, 4>
C _ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256E
C bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s5_et64x8_m64x8x64_cga1x1x1
C void cask__5x_cublas::sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x64x64
C moe_wna16_gemm_kernel
C _w8a8_block_fp8_matmul
C dot_kernel<float, 128, 0, cublasDotParams>
N ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)
N ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
N ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)
N void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>
N void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>
N void deep_ep::intranode::dispatch<8, 768, 8192>
N void deep_ep::internode_ll::combine<true, 7168, 9>
N multimem_all_reduce_kernel<c10::BFloat16, 16>
N void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<true>
N void two_shot_all_reduce_kernel<c10::BFloat16>
K void vllm::copy_blocks_kernel<c10::BFloat16>
K void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16>
K void vllm::reshape_and_cache_kernel<unsigned short, unsigned short>
K void lmc::load_and_reshape_flash_kernel<__nv_bfloat16, false>
K void lmc::load_and_reshape_multi_layer_kernel<c10::BFloat16, true>
K void transfer_kernel_impl<false, 8>
K set_kv_buffer_kernel
E void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>
E void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>
E void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>
E void vllm::moe::moe_align_block_size_kernel<int>
E void vllm::moe::count_and_sort_expert_tokens_kernel<int>
E void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>
E void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>
E _per_token_group_quant_8bit_colmajor
E void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>
E void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>
E void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy900, false, float, long>
E void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>
E void at::native::_scatter_gather_elementwise_kernel<128, 4>
E void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>
E void flashinfer::sampling::TopKTopPSamplingFromProbKernel<512u>
E triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1
E triton_per_fused_add_native_layer_norm_2
E apply_token_bitmask_inplace_kernel
E compute_position_kernel
E void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16>
E void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<__nv_bfloat16>
E void at::native::index_elementwise_kernel<128, 4>
E void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4>
"""
_LATER = """
A void sm90::fwd::flash_attn_varlen_kernel<cutlass::bfloat16_t, 128>
A void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<...>>
A _attn_fwd
A void aiter::paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, 16, 256, 8>
A void vllm::cutlass_mla_decode<cutlass::bfloat16_t>
A void flashinfer::SinglePrefillWithKVCacheKernel<...>
A kernel_unified_attention_split_reduce
A _ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelIS_EEE
C void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align8>
C sm100_bf16_gemm_tma_persistent
C void gemmk1_kernel<int, float, 256, 5, false, false, false>
C ampere_fp16_s16816gemm_fp16_128x128_ldg8_stages_32x5_tn
C Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8
C void awq_gemm_forward_4bit_cuda_m16n64k32
C grouped_gemm_offset_kernel
C _fused_moe_lora_expand
C void vllm::machete::MacheteKernelTemplate<...>
C triton_tem_fused_addmm_0
C void tensorrt_llm::kernels::cutlass_kernels::MoeGemmKernel<...>
C _w8a16_gemm_kernel
N ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)
N ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)
N void deep_ep::internode::notify_dispatch<true, 4>
N rcclGenericKernel_2(ncclDevKernelArgsStorage<4096>)
N void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>
N nvshmemi_transfer_put_kernel
N symm_mem_one_shot_all_reduce_kernel<c10::BFloat16>
K void vllm::swap_blocks_kernel
K void cp_async_kv_cache_copy_kernel
K void vllm::concat_and_cache_ds_mla_kernel<__nv_bfloat16>
K store_kvcache_kernel
E void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16>
E void vllm::topk_softmax_kernel<8, float>
E void at::native::vectorized_layer_norm_kernel<float, float>
E triton_poi_fused_mul_silu_slice_2
E void at::native::bitonicSortKVInPlace<2, -1, 16, 16>
E void at::native::unrolled_elementwise_kernel<at::native::FillFunctor<int>>
E void at::native::(anonymous namespace)::write_indices<long>
E void at_cuda_detail::cub::DeviceScanKernel<...>
E void vllm::gelu_tanh_and_mul_kernel<c10::Half>
E _get_num_sampled_and_rejected_kernel
E void at::native::embedding_kernel<float>
E _compute_slot_mapping_kernel
E void vllm::apply_repetition_penalties_kernel<float>
E void vllm::moe::moe_permute_kernel<...>
"""
BY_DIGEST: dict[str, str] = {word[:12]: CLASSES[word[12]] for word in _DIGESTS.split()}
BY_NAME: dict[str, str] = {line[2:]: CLASSES[line[0]] for line in _NAMES.strip().splitlines()}
LATER: dict[str, str] = {line[2:]: CLASSES[line[0]] for line in _LATER.strip().splitlines()}
"""45 names labelled when the rules of version 2 stood: 40 agreed at first sight, the other five were of no class."""
