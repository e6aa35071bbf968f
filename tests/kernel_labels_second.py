"""Names of kernels labelled by reading before the rules of version 3 were written. Holds data only.

Taken from profiles, tables and logs that projects publish, none of them in `kernel_labels`; the same letters and the
same ways of deciding. Further: a kernel is what it does, whatever it is fused with by name, so a pointwise kernel of
Inductor that carries `all_reduce` in its name is elementwise; state-space and linear-attention mixers are attention;
writing rotated keys into the cache is copy; moving rows to and from experts within one device is elementwise.
"""

from tests.kernel_labels import CLASSES

_NAMES = """
A void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>
A void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128>>, 5, 256>>
A flash::prepare_varlen_num_blocks_kernel
A void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>
A void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128, 64, 128>>
A void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>
A void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<sm90::decode::sparse_fp8::KernelTemplate<64>>
A void sm90::get_mla_metadata_kernel(GetDecodingMetadataParams)
A sparse_attn_fwd_kernel
A fmhaSm100fKernel_QkvFp16OFp16H128PagedKvCausalP64MultiCtasKvVarSeqQ8Kv128StaticSwapsAbForGen
A fmhaSm100aKernel_QE4m3KvE2m1OE4m3H128PagedKvDenseP16VarSeqQ8Kv128PersistentSwapsAbForGen
A fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_tma_ws_sm90_kernel
A kernel_mha
A void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<unsigned short, __nv_fp8_e4m3, 128, 256>
A fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)
A cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_cga1x1x1_kernel0_0
A void vllm::paged_attention_v2_reduce_kernel<c10::BFloat16, 128, 128, 512>
A void vllm::merge_attn_states_kernel<c10::BFloat16, 128>
A triton_tem_fused_flex_attention_0
A void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode, 2u, 4u, 8u, 16u, 1u>
A void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<128u, 1u, 4u>>
A aiter::mla_dec_stage1_bf16_a16w16_subQ16_mqa16
A _fwd_kernel_stage2_asm
A mla_a8w8_qh16_qseqlen1_gqaratio16
A kn_mla_reduce_v1_ps
A aiter::fmha_fwd_hd192_hd128_bf16_causal_group
A _ZN5aiter40pa_bf16_noquant_a16w16_gqa8_1tg_4w_mtp_0E
A _fwd_kernel
A void sm90_fp8_paged_mqa_logits<2u, 64u, 128u, true, false, 64u, 5u>
A void sm100_fp8_mqa_logits<64u, 128u, false, 128u>
A _qsa_merge_splitk_kernel
A fused_recurrent_gated_delta_rule_fwd_kernel
A fused_recurrent_gated_delta_rule_packed_decode_kernel
A fused_sigmoid_gating_delta_rule_update_kernel
A fused_recurrent_kda_packed_decode_kernel
A chunk_gated_delta_rule_fwd_kernel_h_blockdim64
A chunk_fwd_kernel_o
A chunk_scaled_dot_kkt_fwd_kernel
A recompute_w_u_fwd_kernel
A merge_16x16_to_64x64_inverse_kernel
A gdn_wide_vec_kernel
A gdr_decode_batch_kernel
A void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<64, 16, 1, false, true, true>>
A _selective_scan_update_kernel
A _chunk_scan_fwd_kernel
A _state_passing_fwd_kernel
A void flash_attn_ext_f16<128, 128, 64, 1, false, false>
A void flash_attn_vec_ext_f32<128, 2, (ggml_type)1, (ggml_type)1, false>
A void flash_attn_stream_k_fixup<128, 8, 4>
A void flash_attn_combine_results<128>
A gated_delta_net_cuda
A void ssm_scan_f32<256ul, 16ul>
A paged_attention_quantized_fa3_partial
A kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o1112
C _ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13CollectiveMmaE
C void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>
C nvjet_hsh_128x8_64x12_2x1_v_bz_TNT
C nvjet_ootst_128x64_256x5_2x2_h_bz_UFOOOTT
C void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 256u, 128u, 128u, 0u, 128u, 4u, 3u, 128u, 128u, 1u, true>
C void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 8u, 128u, 112u, 128u>
C void sm100_tf32_hc_prenorm_gemm_impl<24u, 28672u, 64u, 32u, 64u>
C void sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0>
C bmm_E4m3_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64_m64x64x64_cga1x1x1_16dp256b_TN_transOut_schedS
C bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_et128x8_m128x8x16
C void router_gemm_kernel_float_output<__nv_bfloat16, 128, 8, 4, 256, 7168>
C void fused_a_gemm_kernel<16, 2112, 7168, 16, 16>
C _hc_gemv
C fp4_gemv_dec3
C void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>
C void gemmSN_TN_kernel<float, 128, 16, 2, 4, 10, 11, false, cublasGemvTensorStridedBatched<float const>>
C void cublasLt::epilogue::impl::globalKernel<8, 16, 1, 1, 1, 1, 1, 0, __nv_bfloat16>
C volta_sgemm_128x64_nn
C turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn
C maxwell_scudnn_128x64_relu_small_nn_v1
C sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4
C void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>
C void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>
C void cusparse::csrmm_v2::csrmm_kernel<cusparse::csrmm_v2::MergePathPolicy, false, false>
C void ck::kernel_moe_mxgemm_2lds<ck::GridwiseMoeGemmMX_BPreshuffle<ck::tensor_layout::gemm::RowMajor>>
C _batched_gemm_a16wfp4_kernel_BLOCK_SIZE_M_4_BLOCK_SIZE_N_32_BLOCK_SIZE_K_128_GROUP_SIZE_M_1_NUM_KSPLIT_1
C Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_NTD_SK3_UserArgs_MT256x256x64_MI16x16x1_shortname0_gfx950
C bf16gemm_fp32bf16_tn_64x64_splitk_clean
C _gemm_a8w8_blockscale_kernel
C void ck::kernel_gemm_xdl_cshuffle_v3_multi_d_b_preshuffle<ck::GridwiseGemmMultiD_xdl_cshuffle_v3_b_preshuffle>
C void wvSplitKQ_hf_sml_<__hip_bfloat16, __hip_fp8_e4m3, 64, 2, 16, 16, 2, 1>
C mfma_moe1_silu_mul_afp4_wfp4_bf16_t32x256x256
C scaled_mm_kernel
C _w8a8_triton_block_scaled_mm
C _matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu
C _p_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x64x1
C _sgmv_shrink_kernel
C _lora_expand_kernel
C _lora_shrink_kernel
C void bgmv_shrink_kernel<4096, 16, 2, 16, 32, 4, __nv_bfloat16>
C void mul_mat_vec_q<(ggml_type)12, 1, false, false>
C void mul_mat_q<(ggml_type)14, 128, false>
C void mul_mat_q_stream_k_fixup<(ggml_type)12, 128, true>
C void mul_mat_vec_f<__half, float, 1, 256>
C void mul_mat_q3_K
C void moe_q2_K<c10::Half, true>
C void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>
C void marlin::Marlin<1125899906909960l, 256, 1, 8, 8, 4>
C void marlin_moe_wna16::Marlin<(long)1125899906909960, (long)562949953487106, (int)128, (int)1, (int)8>
C kernel_cutlass_kernel_Sm100BlockScaledPersistentDenseGemmKernel_object_at__tensorptrf4E2M1FN
C void MoeGemvKernel<__nv_bfloat16, 4, 64>
C triton_tem_fused_bmm_1
C ampere_sgemm_64x32_sliced1x4_tn
C cutlass_tensorop_f16_s16816gemm_f16_128x256_32x3_tt_align8
C void cask_plugin_cudnn::xmma_cudnn::implicit_gemm::strided_dgrad_indexed::kernel
N ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE
N ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_bf16(ncclSymDevArgs)
N ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
N mscclKernel_Sum_half_Simple_true
N void mscclpp::collective::allreduceAllPairs<mscclpp::SUM, __half, false>
N void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>
N void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>
N void deep_ep::intranode::cached_notify_combine<8>
N void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>
N void deep_ep::internode_ll::clean_low_latency_buffer<32>
N void deep_ep::layout::get_dispatch_layout<256, 32, 8>
N moeA2ADispatchKernel
N void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<8, 8>
N void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>
N void mori::moe::EpCombineInterNodeV1Kernel<hip_bfloat16>
N void flashinfer::trtllm_allreduce_fusion::moefinalize_allreduce_fusion_kernel_oneshot_lamport<8, __nv_bfloat16>
N void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16>
N void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>
N userbuffers_rmsnorm
N void c10d::symmetric_memory::barrier_kernel
N multimem_one_shot_all_reduce_kernel<c10::BFloat16>
N a2a_dispatch_send_kernel
N void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>
N nvshmemi_barrier_on_stream_kernel
N one_shot_all_to_all_vdev_2d
K memcpy32_post
K batch_memcpy_kernel
K void vllm::reshape_and_cache_nvfp4_kernel<__nv_bfloat16>
K void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, __nv_bfloat16>
K void vllm::cp_gather_indexer_k_quant_cache_kernel<8>
K void vllm::gather_and_maybe_dequant_cache<__nv_bfloat16, unsigned char>
K _zero_kv_blocks_kernel
K fuse_qk_rope_concat_and_cache_mla_per_head_kernel
K set_mla_kv_buffer_kernel
K set_k_and_s_triton_kernel
K void flashinfer::AppendPagedKVCacheKernel<128u, 8u, 16u>
K void lmc::single_layer_kv_transfer_kernel<c10::BFloat16>
K flexkv::transfer_kv_blocks_kernel
K void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, 128>
K void tensorrt_llm::kernels::appendPagedKVCacheMLA<__nv_bfloat16>
E mhc_post_tilelang_kernel
E mhc_pre_big_fuse_with_norm_tilelang_kernel
E _hc_post_kernel
E _gumbel_sample_kernel
E _rejection_kernel
E _resample_kernel
E _topk_topp_kernel
E _post_update_kernel
E _prepare_pos_seq_lens_kernel
E _prepare_prefill_inputs_kernel
E _combine_sampled_and_draft_tokens_kernel
E eagle_prepare_inputs_padded_kernel
E eagle_step_slot_mapping_metadata_kernel
E _apply_write_kernel
E expand_kernel
E _compute_local_logits_stats_kernel
E BuildPrefillChunkMetadataKernel.kernel
E _triton_mrope_forward
E _lookup_ple_embedding_from_pinned_kernel
E fused_qkvzba_split_reshape_cat_contiguous_kernel
E _fused_qk_rmsnorm_rope_gate_kernel
E _fused_post_conv_kernel
E _layer_norm_fwd_1pass_kernel
E l2norm_fwd_kernel
E chunk_local_cumsum_scalar_kernel
E fused_gdn_gating_kernel
E _causal_conv1d_update_kernel
E void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, c10::BFloat16>>
E quantize_q8_1
E void quantize_mmq_q8_1<(mmq_q8_1_ds_layout)1>
E void dequantize_block_q4_K<__half>
E void rms_norm_f32<1024, true, false>
E void k_get_rows_float<float, float>
E void k_set_rows<float, long, __half>
E void rope_neox<true, false, float>
E void soft_max_f32<true, 0, 0, float>
E void k_bin_bcast<&op_add, float, float, float>
E void unary_gated_op_kernel<&op_silu, float>
E void topk_moe_cuda<128, false>
E void ssm_conv_f32<true, 128ul, 4ul>
E void convert_unary<float, __half>
E applyMLARopeAndAssignQKV
E void flashinfer::RopeQuantizeKernel<__nv_bfloat16, __nv_fp8_e4m3>
E void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, true>
E void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams>
E void moe::dev::activation::activationDeepSeekKernel<moe::dev::activation::KernelParams>
E void moe::dev::routing::routingCustom::routingIndicesClusterKernel<moe::dev::routing::KernelParams>
E void tensorrt_llm::kernels::cutlass_kernels::blockExpertPrefixSumKernel<256>
E void tensorrt_llm::kernels::cutlass_kernels::fusedBuildExpertMapsSortFirstTokenKernel<32, 4>
E void tensorrt_llm::kernels::quantize_with_block_size<(BlockScaleQuantizationType)0, __nv_bfloat16, 16>
E void cvt_fp16_to_fp4<__nv_bfloat16, false>
E void tensorrt_llm::kernels::batchApplyPenalty<float>
E void tensorrt_llm::kernels::topKStage2Sampling<float, 256, 8>
E void deepseek_v3_topk_kernel<float, __nv_bfloat16, 256>
E void moeTopK<256>(float const*, bool const*, float*, int*, int, int, int, int, int, bool)
E void moe_fused_gate_kernel_dynamic<__nv_bfloat16>
E void ck_tile::kentry<1, ck_tile::Rmsnorm2dFwd<ck_tile::Rmsnorm2dFwdPipelineOnePass<ck_tile::Rmsnorm2dProblem>>>
E void ck_tile::kentry<2, ck_tile::MoeSortingMultiPhaseKernel_P23<ck_tile::MoeSortingProblemMp<int, float>>>
E _moe_mxfp4_sort_kernel
E void aiter::dynamic_per_group_scaled_quant_kernel<std::bfloat16_t, ck_tile::fp4x2_t, 32>
E void rocprim::ROCPRIM_400000_NS::detail::partition_kernel<(rocprim::ROCPRIM_400000_NS::detail::select_method)0, true>
E void aiter::add_rmsnorm_quant_kernel<__hip_bfloat16, __hip_bfloat16, 256, 24>
E fused_mxfp4_quant_moe_sort
E write_req_to_token_pool_triton
E alloc_extend_kernel
E _fwd_kernel_ep_scatter_2
E _fwd_kernel_ep_gather
E deepep_permute_triton_kernel
E deepep_post_reorder_triton_kernel
E _silu_and_mul_post_quant_kernel
E silu_mul_quant_varlen_kernel
E _static_quant_fp8
E void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, true, true, float>
E void build_tree_efficient<long>
E void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel<false, 128u, 8u, 16u, __half, long>
E void flashinfer::sampling::OnlineSoftmaxMapKernel<1024, float>
E triton_poi_fused_add_all_reduce_0
E triton_red_fused_fused_add_rms_norm_moe_forward_0
E triton_poi_fused_add_clone_copy_expand_index_mul_neg_slice_split_stack_unsqueeze_view_2
E void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::OpaqueType<1u>, unsigned int, 2, 128>
E void at::native::(anonymous namespace)::cunn_SoftMaxForwardGmem<4, float, float, float>
E void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>
E void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>
E void at::native::vectorized_gather_kernel<16, long>
E void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>
E void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>
E void at::native::triu_tril_kernel<bool, int, false, 16, false>
E void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)>
E void vllm::vocab_embedding::vocab_parallel_embedding_kernel<int, uint4>
E void awq::dequantize_weights(int*, __half*, int*, __half*, int)
E void gptq_marlin_repack_kernel<256, 4, false>
E void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>
E void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::normalization::Kernel_traits>
E liger_cross_entropy_kernel
E nvfuser_pointwise_f0_c1_r0_g3
E CudaCodeGen::kernel15(CudaCodeGen::Tensor<CudaCodeGen::__half, 2>)
E layernorm_backward_kernel
E _ce_bwd_kernel
E void vllm::moe::grouped_topk_fused_kernel<__nv_bfloat16, __nv_bfloat16, int>
E void vllm::moe::shuffleInputRowsKernel<__nv_bfloat16>
E void vllm::topKPerRowDecode<512, true>
"""
_AFTER = """
N void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>
N void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 8u, true>
C void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 32u, 32u, 0u, 768u>
C _mxfp8_block_scaled_matmul_kernel
E post_reorder_deepgemm_triton_kernel
E void moe_align_block_size_small_batch_expert_kernel<int, 256>
C void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>
C cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu
A fmhaSm100fKernel_QkvFp16OFp16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext
E void moe_sum_reduce_kernel_warp_token_topk<c10::Half, 8, 4>
E void moe::dev::routing::routingDeepSeek::routingMainKernel
C bmm_Bfloat16_MxInt4Bfloat16_castBfloat16_Fp32_t128x64x256u2_s3_et128x64
K memcpy_triton_kernel
E concat_and_cast_mha_k_kernel
C nvjet_tst_176x128_64x8_1x2_2cta_h_bz_TNN
C nvjet_sm90_tst_128x8_64x12_4x1_v_bz_splitK_TNT
E void (anonymous namespace)::per_token_group_quant_8bit_v2_kernel<(anonymous namespace)::NaiveScheduler, 128, 8>
A void (anonymous namespace)::sparse_attention_kernel<true>(SparseAttentionParams)
E _hc_split_pre_kernel
E void marlin::gptq_marlin_repack_kernel<256, 4, false, false>
E _fp8_activation_quantize_kernel
A _indexer_fp8_paged_logits_kernel
E _moe_route_fill_kernel
E _rms_norm_bf16_kernel
K _q_kv_norm_rope_cache_bf16_kernel
C ampere_sgemm_32x128_tn
A kernel_cutlass_gdn_decode_bf16state_mtp_kernel
A gdn_decode_bf16_wy_output_only
E kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at__tensorptrbf16
C void internal::gemvx::kernel<int, int, __nv_bfloat16, float, float, float, false, true, true, false, 7, false>
C _w8a16_gemv_kernel
N void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>
A void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 8>, 4, false>
K void vllm::gather_and_maybe_dequant_cache_page<__nv_bfloat16, __nv_bfloat16, 0>
E void tensorrt_llm::kernels::topkGatingSoftmax<float, 8, 64, 4, 16>
C mfma_moe2_afp8_wfp4_bf16_cshuffle_t32x256x256_vscale
C mfma_moe1_silu_mul_afp8_wfp4_fp8_t32x128x256_pm1_fp8
A _sparse_attn_decode_partial_kernel
A _sparse_attn_decode_reduce_kernel
A _sparse_attn_prefill_ragged_kernel
K _fused_kv_compress_norm_rope_insert_sparse_attn
K _fused_kv_compress_norm_rope_insert_indexer_attn
E _ZN5aiter23mhc_pre_big_fuse_kernelIDF16bLi320ELi4E
C _ZN5aiter26mhc_pre_gemm_sqrsum_kernelIDF16bLi256ELi64E
E void aiter::mhc_post_kernel<std::bfloat16_t, 4>
E _save_partial_states_kernel
K void vllm::deepseek_v4_fused_ops::fusedDeepseekV4QNormRopeKVRopeQuantInsertKernel<c10::BFloat16>
K __amd_rocclr_copyBuffer
E void vllm::topKPerRowDecode<1024, true, false, true>
E void vllm::moe::topkGatingSoftplusSqrt<6, 384, 4, 8, 32, false, int, float>
E void aiter::opus_moe_sorting_entry<aiter::MoeSortingKernel<aiter::MoeSortingProblemEx<int, float, 2, true>>>
E _ZN5aiter30fused_mx_quant_moe_sort_kernelIDF16bDB8_Li256E
E _pack_global_topk_ragged_kernel
E void aiter::topk_softplus_kernel_opt<hip_bfloat16, hip_bfloat16>
N ncclDevKernel_Generic_1
E mhc_pre_big_fuse_tilelang_kernel
E mhc_fused_tilelang_kernel
E triton_poi_fused_clamp_mul_silu_slice_0
C void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<ck::tensor_layout::gemm::RowMajor>>
C hgemm_bf16_16x64x64x6
A paged_attention_ll4mi_reduce_kernel
E void setup_group_ptrs<128>
E void vllm::moe::topkGating<8, 256, 4, 16, 32, int, __nv_bfloat16, ScoringFunc::SOFTMAX>
C gemm2_a4w4_port_hmax8192_imax256_bm32_bn128_bk256_nt_reduce_tk10_bhoist_apf_spart4x2_bf16lds
E moe_reduction_kernel_0
E void aiter::mxfp4_moe_sort_kernel<256, 32, 32, 32>
E void aiter::mxfp4_moe::moe_sort_quant::sort_quant_kernel_impl<385, 9, 16, 7168, 128, 1024>
C void aiter::mxfp4_moe::gemm2::kernel<655360, 385, 512, 7168, 9, 16>
C _ZN7ck_tile6kentryILi2ENS_15MoeFlatmmKernelINS_33GemmSpatiallyLocalTilePartitionerINS_13TileGemmShape
E void aiter::grouped_topk_kernel<c10::BFloat16, float __vector(4), true, true, false>
A _Z33pa_prefill_16mx1_16nx4_fp8_kernelI25pa_16mx1_16nx4_fp8_traitsILi16EEEv
E hca_norm_rope_scatter_D512_RD64_R128_KB1_KW1_rmsbf16_fp8_flydsl
K void (anonymous namespace)::store_kvcache<256l, 1, false, long>
E triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0
A fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP16VarSeqQ16Kv128
C void cutlass::device_kernel<flashinfer::gemm::DeviceGemmFp4GemmSm100<__nv_bfloat16>>
N void deep_ep::intranode::notify_dispatch<4>
E void fast_hadamard_transform_kernel<fast_hadamard_transform_kernel_traits<256, 12, c10::BFloat16>>
E void ck_tile::kentry<1, ck_tile::MoeSortingMultiPhaseKernel_P0_v2<ck_tile::MoeSortingProblemMp<int, float>>>
C dense_kernel0
E void sglang::gptq::shuffle_4bit_kernel
E void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 64u, 8u, 16u>
C void moe_q6_K<c10::Half, false>
E fusedBuildExpertMapsSortFirstTokenAndStrides
E rotary_kernel
"""
_WITH_PLAIN_WORDS = """
C void r4d_gemm_w4a16_nt_m64_kernel<1, 1, true>(unsigned short const*, unsigned int const*) [clone .kd]
E void vllm::rms_norm_kernel<c10::BFloat16, 8, 2, true>(c10::BFloat16*, c10::BFloat16 const*, long) [clone .kd]
E void vllm::rotary_embedding_kernel<c10::BFloat16, c10::BFloat16, true>(long const*, c10::BFloat16*) [clone .kd]
E triton_poi_fused__to_copy_embedding_0.kd
E void norm_quant<false, 512>(unsigned short const*, unsigned short const*, unsigned char*, float*) [clone .kd]
E triton_poi_fused_add_1.kd
K reshape_and_cache_kernel_flash.kd
E triton_red_fused_7.kd
A void r4d_attn_decode_kernel<3, 16, 256, 6, 16, 0, 3430971>(R4DArgs, int) [clone .kd]
E void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>
E std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms_norm_kern
K void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0
A cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_7_128x128x64
A cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_7_128x128x64
C nvjet_sm100_qrsss_256x256_128x4_2x1_2cta_v_bz_NTT
E triton_poi_fused_add_cat_mul_rsub_sigmoid_silu_split_0
E multi_tensor_apply_kernel<TensorListMetadata<5, false>, AdamFunctor<float, float>>
N void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *, float *, int *)
E at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char **, char **)
E void transformer_engine::normalization::rmsnorm_fwd_general_kernel<transformer_engine::normalization>
E void causal_conv1d_channellast_fwd_kernel<Causal_conv1d_channellast_fwd_kernel_traits<(int)128>>
E _permute_kernel
E _unpermute_kernel
A _chunk_state_fwd_kernel
A _v4_attention_bwd_kernel
A _v4_csa_attention_pool_sparse_bwd_kernel
A _v4_attention_fwd_kernel
N void primus_turbo::deep_ep::intranode::cached_notify_combine<8>
C void ck_tile::kentry<1, GroupedGemmKernel<ck_tile::GemmTile>>
E triton_per_fused__to_copy_arange_bucketize_clamp_mul_reciprocal_select_sum_unsqueeze_1
E _qwen_gdn_chunk_cumsum_kernel_v6_standalone
A _qwen_gdn_kkt_solve_bf16_kernel_bt64_one_cta_stage6x_x2
A _qwen_gdn_wu_kernel_bt64_fused_bf16_solved_stage6u
A _qwen_gdn_chunk_o_bf16_vnew_bf16_out_kernel_bt64_stage6w
E layer_norm_gated_fwd_kernel
E _causal_conv1d_fwd_kernel
C void sgemm_largek_lds64<true, false, 5>(float*)
C void mul_mat_vec_q<(ggml_type)16, 1, true, false>
C mul_mat_vec_q4_0_q8_1_cuda4
"""
BEFORE_VERSION_3: dict[str, str] = {line[2:]: CLASSES[line[0]] for line in _NAMES.strip().splitlines()}
AFTER_VERSION_3: dict[str, str] = {line[2:]: CLASSES[line[0]] for line in _AFTER.strip().splitlines()}
"""Names met in further tables and labelled when the rules of version 3 stood; none was left out of a table."""
WITH_PLAIN_WORDS: dict[str, str] = {line[2:]: CLASSES[line[0]] for line in _WITH_PLAIN_WORDS.strip().splitlines()}
"""Names of further tables, labelled once the rules of version 3 had what those before taught; none was left out."""
