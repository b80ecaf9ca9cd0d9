//! Provisional: the same header and lists through bindgen 0.60. `cargo xtask verbs-bindings` writes it anew, and
//! `tests/fresh.rs` fails until it has.
#![allow(unsafe_op_in_unsafe_fn)]
use libc::pthread_cond_t;
use libc::pthread_mutex_t;
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_ah {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_alloc_dm_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_counter_attach_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_counters {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_counters_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_cq_ex {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_dm {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_dmah {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_dmah_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_flow {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_flow_action {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_flow_action_esp_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_flow_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_modify_cq_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_mr_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_ops_wr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_qp_open_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_qp_rate_limit_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_rwq_ind_table {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_td {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_td_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_values_ex {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_wq {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_wq_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_wq_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_xrcd {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ibv_xrcd_init_attr {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct verbs_ex_private {
    _opaque: [u8; 0],
}

pub type __uint8_t = ::std::os::raw::c_uchar;
pub type __uint16_t = ::std::os::raw::c_ushort;
pub type __uint32_t = ::std::os::raw::c_uint;
pub type __uint64_t = ::std::os::raw::c_ulong;
pub type __time_t = ::std::os::raw::c_long;
pub type __ssize_t = ::std::os::raw::c_long;
pub type __syscall_slong_t = ::std::os::raw::c_long;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __u32 = ::std::os::raw::c_uint;
pub type __u64 = ::std::os::raw::c_ulonglong;
pub type __be32 = __u32;
pub type __be64 = __u64;
impl ib_uverbs_advise_mr_advice {
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice =
        ib_uverbs_advise_mr_advice(0);
}
impl ib_uverbs_advise_mr_advice {
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice =
        ib_uverbs_advise_mr_advice(1);
}
impl ib_uverbs_advise_mr_advice {
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice =
        ib_uverbs_advise_mr_advice(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_advise_mr_advice(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
impl ibv_gid_type {
    pub const IBV_GID_TYPE_IB: ibv_gid_type = ibv_gid_type(0);
}
impl ibv_gid_type {
    pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = ibv_gid_type(1);
}
impl ibv_gid_type {
    pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = ibv_gid_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_gid_type(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
impl ibv_node_type {
    pub const IBV_NODE_UNKNOWN: ibv_node_type = ibv_node_type(-1);
}
impl ibv_node_type {
    pub const IBV_NODE_CA: ibv_node_type = ibv_node_type(1);
}
impl ibv_node_type {
    pub const IBV_NODE_SWITCH: ibv_node_type = ibv_node_type(2);
}
impl ibv_node_type {
    pub const IBV_NODE_ROUTER: ibv_node_type = ibv_node_type(3);
}
impl ibv_node_type {
    pub const IBV_NODE_RNIC: ibv_node_type = ibv_node_type(4);
}
impl ibv_node_type {
    pub const IBV_NODE_USNIC: ibv_node_type = ibv_node_type(5);
}
impl ibv_node_type {
    pub const IBV_NODE_USNIC_UDP: ibv_node_type = ibv_node_type(6);
}
impl ibv_node_type {
    pub const IBV_NODE_UNSPECIFIED: ibv_node_type = ibv_node_type(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_node_type(pub ::std::os::raw::c_int);
impl ibv_transport_type {
    pub const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = ibv_transport_type(-1);
}
impl ibv_transport_type {
    pub const IBV_TRANSPORT_IB: ibv_transport_type = ibv_transport_type(0);
}
impl ibv_transport_type {
    pub const IBV_TRANSPORT_IWARP: ibv_transport_type = ibv_transport_type(1);
}
impl ibv_transport_type {
    pub const IBV_TRANSPORT_USNIC: ibv_transport_type = ibv_transport_type(2);
}
impl ibv_transport_type {
    pub const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = ibv_transport_type(3);
}
impl ibv_transport_type {
    pub const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = ibv_transport_type(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_transport_type(pub ::std::os::raw::c_int);
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = ibv_device_cap_flags(1);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = ibv_device_cap_flags(2);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = ibv_device_cap_flags(4);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = ibv_device_cap_flags(8);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = ibv_device_cap_flags(16);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = ibv_device_cap_flags(32);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = ibv_device_cap_flags(64);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = ibv_device_cap_flags(128);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = ibv_device_cap_flags(256);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = ibv_device_cap_flags(512);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = ibv_device_cap_flags(1024);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = ibv_device_cap_flags(2048);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = ibv_device_cap_flags(4096);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = ibv_device_cap_flags(8192);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = ibv_device_cap_flags(16384);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = ibv_device_cap_flags(131072);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(262144);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_XRC: ibv_device_cap_flags = ibv_device_cap_flags(1048576);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = ibv_device_cap_flags(2097152);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = ibv_device_cap_flags(8388608);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = ibv_device_cap_flags(16777216);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(33554432);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(67108864);
}
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags =
        ibv_device_cap_flags(536870912);
}
impl ::std::ops::BitOr<ibv_device_cap_flags> for ibv_device_cap_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_device_cap_flags(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_device_cap_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_device_cap_flags) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_device_cap_flags> for ibv_device_cap_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_device_cap_flags(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_device_cap_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_device_cap_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_device_cap_flags(pub ::std::os::raw::c_uint);
impl ibv_atomic_cap {
    pub const IBV_ATOMIC_NONE: ibv_atomic_cap = ibv_atomic_cap(0);
}
impl ibv_atomic_cap {
    pub const IBV_ATOMIC_HCA: ibv_atomic_cap = ibv_atomic_cap(1);
}
impl ibv_atomic_cap {
    pub const IBV_ATOMIC_GLOB: ibv_atomic_cap = ibv_atomic_cap(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_atomic_cap(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [::std::os::raw::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: ::std::os::raw::c_int,
    pub max_qp_wr: ::std::os::raw::c_int,
    pub device_cap_flags: ::std::os::raw::c_uint,
    pub max_sge: ::std::os::raw::c_int,
    pub max_sge_rd: ::std::os::raw::c_int,
    pub max_cq: ::std::os::raw::c_int,
    pub max_cqe: ::std::os::raw::c_int,
    pub max_mr: ::std::os::raw::c_int,
    pub max_pd: ::std::os::raw::c_int,
    pub max_qp_rd_atom: ::std::os::raw::c_int,
    pub max_ee_rd_atom: ::std::os::raw::c_int,
    pub max_res_rd_atom: ::std::os::raw::c_int,
    pub max_qp_init_rd_atom: ::std::os::raw::c_int,
    pub max_ee_init_rd_atom: ::std::os::raw::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: ::std::os::raw::c_int,
    pub max_rdd: ::std::os::raw::c_int,
    pub max_mw: ::std::os::raw::c_int,
    pub max_raw_ipv6_qp: ::std::os::raw::c_int,
    pub max_raw_ethy_qp: ::std::os::raw::c_int,
    pub max_mcast_grp: ::std::os::raw::c_int,
    pub max_mcast_qp_attach: ::std::os::raw::c_int,
    pub max_total_mcast_qp_attach: ::std::os::raw::c_int,
    pub max_ah: ::std::os::raw::c_int,
    pub max_fmr: ::std::os::raw::c_int,
    pub max_map_per_fmr: ::std::os::raw::c_int,
    pub max_srq: ::std::os::raw::c_int,
    pub max_srq_wr: ::std::os::raw::c_int,
    pub max_srq_sge: ::std::os::raw::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
impl ibv_mtu {
    pub const IBV_MTU_256: ibv_mtu = ibv_mtu(1);
}
impl ibv_mtu {
    pub const IBV_MTU_512: ibv_mtu = ibv_mtu(2);
}
impl ibv_mtu {
    pub const IBV_MTU_1024: ibv_mtu = ibv_mtu(3);
}
impl ibv_mtu {
    pub const IBV_MTU_2048: ibv_mtu = ibv_mtu(4);
}
impl ibv_mtu {
    pub const IBV_MTU_4096: ibv_mtu = ibv_mtu(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mtu(pub ::std::os::raw::c_uint);
impl ibv_port_state {
    pub const IBV_PORT_NOP: ibv_port_state = ibv_port_state(0);
}
impl ibv_port_state {
    pub const IBV_PORT_DOWN: ibv_port_state = ibv_port_state(1);
}
impl ibv_port_state {
    pub const IBV_PORT_INIT: ibv_port_state = ibv_port_state(2);
}
impl ibv_port_state {
    pub const IBV_PORT_ARMED: ibv_port_state = ibv_port_state(3);
}
impl ibv_port_state {
    pub const IBV_PORT_ACTIVE: ibv_port_state = ibv_port_state(4);
}
impl ibv_port_state {
    pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = ibv_port_state(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_port_state(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: ::std::os::raw::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
impl ibv_event_type {
    pub const IBV_EVENT_CQ_ERR: ibv_event_type = ibv_event_type(0);
}
impl ibv_event_type {
    pub const IBV_EVENT_QP_FATAL: ibv_event_type = ibv_event_type(1);
}
impl ibv_event_type {
    pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = ibv_event_type(2);
}
impl ibv_event_type {
    pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = ibv_event_type(3);
}
impl ibv_event_type {
    pub const IBV_EVENT_COMM_EST: ibv_event_type = ibv_event_type(4);
}
impl ibv_event_type {
    pub const IBV_EVENT_SQ_DRAINED: ibv_event_type = ibv_event_type(5);
}
impl ibv_event_type {
    pub const IBV_EVENT_PATH_MIG: ibv_event_type = ibv_event_type(6);
}
impl ibv_event_type {
    pub const IBV_EVENT_PATH_MIG_ERR: ibv_event_type = ibv_event_type(7);
}
impl ibv_event_type {
    pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = ibv_event_type(8);
}
impl ibv_event_type {
    pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = ibv_event_type(9);
}
impl ibv_event_type {
    pub const IBV_EVENT_PORT_ERR: ibv_event_type = ibv_event_type(10);
}
impl ibv_event_type {
    pub const IBV_EVENT_LID_CHANGE: ibv_event_type = ibv_event_type(11);
}
impl ibv_event_type {
    pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = ibv_event_type(12);
}
impl ibv_event_type {
    pub const IBV_EVENT_SM_CHANGE: ibv_event_type = ibv_event_type(13);
}
impl ibv_event_type {
    pub const IBV_EVENT_SRQ_ERR: ibv_event_type = ibv_event_type(14);
}
impl ibv_event_type {
    pub const IBV_EVENT_SRQ_LIMIT_REACHED: ibv_event_type = ibv_event_type(15);
}
impl ibv_event_type {
    pub const IBV_EVENT_QP_LAST_WQE_REACHED: ibv_event_type = ibv_event_type(16);
}
impl ibv_event_type {
    pub const IBV_EVENT_CLIENT_REREGISTER: ibv_event_type = ibv_event_type(17);
}
impl ibv_event_type {
    pub const IBV_EVENT_GID_CHANGE: ibv_event_type = ibv_event_type(18);
}
impl ibv_event_type {
    pub const IBV_EVENT_WQ_FATAL: ibv_event_type = ibv_event_type(19);
}
impl ibv_event_type {
    pub const IBV_EVENT_DEVICE_SPEED_CHANGE: ibv_event_type = ibv_event_type(20);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_event_type(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: ::std::os::raw::c_int,
}
impl ibv_wc_status {
    pub const IBV_WC_SUCCESS: ibv_wc_status = ibv_wc_status(0);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = ibv_wc_status(1);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = ibv_wc_status(2);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = ibv_wc_status(3);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = ibv_wc_status(4);
}
impl ibv_wc_status {
    pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = ibv_wc_status(5);
}
impl ibv_wc_status {
    pub const IBV_WC_MW_BIND_ERR: ibv_wc_status = ibv_wc_status(6);
}
impl ibv_wc_status {
    pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = ibv_wc_status(7);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = ibv_wc_status(8);
}
impl ibv_wc_status {
    pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = ibv_wc_status(9);
}
impl ibv_wc_status {
    pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = ibv_wc_status(10);
}
impl ibv_wc_status {
    pub const IBV_WC_REM_OP_ERR: ibv_wc_status = ibv_wc_status(11);
}
impl ibv_wc_status {
    pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(12);
}
impl ibv_wc_status {
    pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(13);
}
impl ibv_wc_status {
    pub const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = ibv_wc_status(14);
}
impl ibv_wc_status {
    pub const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = ibv_wc_status(15);
}
impl ibv_wc_status {
    pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = ibv_wc_status(16);
}
impl ibv_wc_status {
    pub const IBV_WC_INV_EECN_ERR: ibv_wc_status = ibv_wc_status(17);
}
impl ibv_wc_status {
    pub const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = ibv_wc_status(18);
}
impl ibv_wc_status {
    pub const IBV_WC_FATAL_ERR: ibv_wc_status = ibv_wc_status(19);
}
impl ibv_wc_status {
    pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = ibv_wc_status(20);
}
impl ibv_wc_status {
    pub const IBV_WC_GENERAL_ERR: ibv_wc_status = ibv_wc_status(21);
}
impl ibv_wc_status {
    pub const IBV_WC_TM_ERR: ibv_wc_status = ibv_wc_status(22);
}
impl ibv_wc_status {
    pub const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = ibv_wc_status(23);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_status(pub ::std::os::raw::c_uint);
impl ibv_wc_opcode {
    pub const IBV_WC_SEND: ibv_wc_opcode = ibv_wc_opcode(0);
}
impl ibv_wc_opcode {
    pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = ibv_wc_opcode(1);
}
impl ibv_wc_opcode {
    pub const IBV_WC_RDMA_READ: ibv_wc_opcode = ibv_wc_opcode(2);
}
impl ibv_wc_opcode {
    pub const IBV_WC_COMP_SWAP: ibv_wc_opcode = ibv_wc_opcode(3);
}
impl ibv_wc_opcode {
    pub const IBV_WC_FETCH_ADD: ibv_wc_opcode = ibv_wc_opcode(4);
}
impl ibv_wc_opcode {
    pub const IBV_WC_BIND_MW: ibv_wc_opcode = ibv_wc_opcode(5);
}
impl ibv_wc_opcode {
    pub const IBV_WC_LOCAL_INV: ibv_wc_opcode = ibv_wc_opcode(6);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TSO: ibv_wc_opcode = ibv_wc_opcode(7);
}
impl ibv_wc_opcode {
    pub const IBV_WC_FLUSH: ibv_wc_opcode = ibv_wc_opcode(8);
}
impl ibv_wc_opcode {
    pub const IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = ibv_wc_opcode(9);
}
impl ibv_wc_opcode {
    pub const IBV_WC_RECV: ibv_wc_opcode = ibv_wc_opcode(128);
}
impl ibv_wc_opcode {
    pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = ibv_wc_opcode(129);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TM_ADD: ibv_wc_opcode = ibv_wc_opcode(130);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TM_DEL: ibv_wc_opcode = ibv_wc_opcode(131);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TM_SYNC: ibv_wc_opcode = ibv_wc_opcode(132);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TM_RECV: ibv_wc_opcode = ibv_wc_opcode(133);
}
impl ibv_wc_opcode {
    pub const IBV_WC_TM_NO_TAG: ibv_wc_opcode = ibv_wc_opcode(134);
}
impl ibv_wc_opcode {
    pub const IBV_WC_DRIVER1: ibv_wc_opcode = ibv_wc_opcode(135);
}
impl ibv_wc_opcode {
    pub const IBV_WC_DRIVER2: ibv_wc_opcode = ibv_wc_opcode(136);
}
impl ibv_wc_opcode {
    pub const IBV_WC_DRIVER3: ibv_wc_opcode = ibv_wc_opcode(137);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_opcode(pub ::std::os::raw::c_uint);
impl ibv_wc_flags {
    pub const IBV_WC_GRH: ibv_wc_flags = ibv_wc_flags(1);
}
impl ibv_wc_flags {
    pub const IBV_WC_WITH_IMM: ibv_wc_flags = ibv_wc_flags(2);
}
impl ibv_wc_flags {
    pub const IBV_WC_IP_CSUM_OK: ibv_wc_flags = ibv_wc_flags(4);
}
impl ibv_wc_flags {
    pub const IBV_WC_WITH_INV: ibv_wc_flags = ibv_wc_flags(8);
}
impl ibv_wc_flags {
    pub const IBV_WC_TM_SYNC_REQ: ibv_wc_flags = ibv_wc_flags(16);
}
impl ibv_wc_flags {
    pub const IBV_WC_TM_MATCH: ibv_wc_flags = ibv_wc_flags(32);
}
impl ibv_wc_flags {
    pub const IBV_WC_TM_DATA_VALID: ibv_wc_flags = ibv_wc_flags(64);
}
impl ::std::ops::BitOr<ibv_wc_flags> for ibv_wc_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_wc_flags(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_wc_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_wc_flags) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_wc_flags> for ibv_wc_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_wc_flags(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_wc_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_wc_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_flags(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: ::std::os::raw::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
impl ibv_access_flags {
    pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = ibv_access_flags(1);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = ibv_access_flags(2);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = ibv_access_flags(4);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = ibv_access_flags(8);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_MW_BIND: ibv_access_flags = ibv_access_flags(16);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_ZERO_BASED: ibv_access_flags = ibv_access_flags(32);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_ON_DEMAND: ibv_access_flags = ibv_access_flags(64);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_HUGETLB: ibv_access_flags = ibv_access_flags(128);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = ibv_access_flags(256);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = ibv_access_flags(512);
}
impl ibv_access_flags {
    pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = ibv_access_flags(1048576);
}
impl ::std::ops::BitOr<ibv_access_flags> for ibv_access_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_access_flags(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_access_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_access_flags) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_access_flags> for ibv_access_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_access_flags(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_access_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_access_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_access_flags(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: ::std::os::raw::c_uint,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut ::std::os::raw::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
impl ibv_mw_type {
    pub const IBV_MW_TYPE_1: ibv_mw_type = ibv_mw_type(1);
}
impl ibv_mw_type {
    pub const IBV_MW_TYPE_2: ibv_mw_type = ibv_mw_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mw_type(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
impl ibv_srq_attr_mask {
    pub const IBV_SRQ_MAX_WR: ibv_srq_attr_mask = ibv_srq_attr_mask(1);
}
impl ibv_srq_attr_mask {
    pub const IBV_SRQ_LIMIT: ibv_srq_attr_mask = ibv_srq_attr_mask(2);
}
impl ::std::ops::BitOr<ibv_srq_attr_mask> for ibv_srq_attr_mask {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_srq_attr_mask(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_srq_attr_mask {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_srq_attr_mask) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_srq_attr_mask> for ibv_srq_attr_mask {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_srq_attr_mask(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_srq_attr_mask {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_srq_attr_mask) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_srq_attr_mask(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut ::std::os::raw::c_void,
    pub attr: ibv_srq_attr,
}
impl ibv_qp_type {
    pub const IBV_QPT_RC: ibv_qp_type = ibv_qp_type(2);
}
impl ibv_qp_type {
    pub const IBV_QPT_UC: ibv_qp_type = ibv_qp_type(3);
}
impl ibv_qp_type {
    pub const IBV_QPT_UD: ibv_qp_type = ibv_qp_type(4);
}
impl ibv_qp_type {
    pub const IBV_QPT_RAW_PACKET: ibv_qp_type = ibv_qp_type(8);
}
impl ibv_qp_type {
    pub const IBV_QPT_XRC_SEND: ibv_qp_type = ibv_qp_type(9);
}
impl ibv_qp_type {
    pub const IBV_QPT_XRC_RECV: ibv_qp_type = ibv_qp_type(10);
}
impl ibv_qp_type {
    pub const IBV_QPT_DRIVER: ibv_qp_type = ibv_qp_type(255);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_type(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut ::std::os::raw::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::std::os::raw::c_int,
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(1);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_CUR_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(2);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = ibv_qp_attr_mask(4);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = ibv_qp_attr_mask(8);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = ibv_qp_attr_mask(16);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_PORT: ibv_qp_attr_mask = ibv_qp_attr_mask(32);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_QKEY: ibv_qp_attr_mask = ibv_qp_attr_mask(64);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_AV: ibv_qp_attr_mask = ibv_qp_attr_mask(128);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = ibv_qp_attr_mask(256);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = ibv_qp_attr_mask(512);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = ibv_qp_attr_mask(1024);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = ibv_qp_attr_mask(2048);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask(4096);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = ibv_qp_attr_mask(8192);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_ALT_PATH: ibv_qp_attr_mask = ibv_qp_attr_mask(16384);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = ibv_qp_attr_mask(32768);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask(65536);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = ibv_qp_attr_mask(131072);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(262144);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_CAP: ibv_qp_attr_mask = ibv_qp_attr_mask(524288);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = ibv_qp_attr_mask(1048576);
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = ibv_qp_attr_mask(33554432);
}
impl ::std::ops::BitOr<ibv_qp_attr_mask> for ibv_qp_attr_mask {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_qp_attr_mask(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_qp_attr_mask {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_qp_attr_mask) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_qp_attr_mask> for ibv_qp_attr_mask {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_qp_attr_mask(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_qp_attr_mask {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_qp_attr_mask) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_attr_mask(pub ::std::os::raw::c_uint);
impl ibv_qp_state {
    pub const IBV_QPS_RESET: ibv_qp_state = ibv_qp_state(0);
}
impl ibv_qp_state {
    pub const IBV_QPS_INIT: ibv_qp_state = ibv_qp_state(1);
}
impl ibv_qp_state {
    pub const IBV_QPS_RTR: ibv_qp_state = ibv_qp_state(2);
}
impl ibv_qp_state {
    pub const IBV_QPS_RTS: ibv_qp_state = ibv_qp_state(3);
}
impl ibv_qp_state {
    pub const IBV_QPS_SQD: ibv_qp_state = ibv_qp_state(4);
}
impl ibv_qp_state {
    pub const IBV_QPS_SQE: ibv_qp_state = ibv_qp_state(5);
}
impl ibv_qp_state {
    pub const IBV_QPS_ERR: ibv_qp_state = ibv_qp_state(6);
}
impl ibv_qp_state {
    pub const IBV_QPS_UNKNOWN: ibv_qp_state = ibv_qp_state(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_state(pub ::std::os::raw::c_uint);
impl ibv_mig_state {
    pub const IBV_MIG_MIGRATED: ibv_mig_state = ibv_mig_state(0);
}
impl ibv_mig_state {
    pub const IBV_MIG_REARM: ibv_mig_state = ibv_mig_state(1);
}
impl ibv_mig_state {
    pub const IBV_MIG_ARMED: ibv_mig_state = ibv_mig_state(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mig_state(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: ::std::os::raw::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
impl ibv_wr_opcode {
    pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = ibv_wr_opcode(0);
}
impl ibv_wr_opcode {
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(1);
}
impl ibv_wr_opcode {
    pub const IBV_WR_SEND: ibv_wr_opcode = ibv_wr_opcode(2);
}
impl ibv_wr_opcode {
    pub const IBV_WR_SEND_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(3);
}
impl ibv_wr_opcode {
    pub const IBV_WR_RDMA_READ: ibv_wr_opcode = ibv_wr_opcode(4);
}
impl ibv_wr_opcode {
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_opcode = ibv_wr_opcode(5);
}
impl ibv_wr_opcode {
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_opcode = ibv_wr_opcode(6);
}
impl ibv_wr_opcode {
    pub const IBV_WR_LOCAL_INV: ibv_wr_opcode = ibv_wr_opcode(7);
}
impl ibv_wr_opcode {
    pub const IBV_WR_BIND_MW: ibv_wr_opcode = ibv_wr_opcode(8);
}
impl ibv_wr_opcode {
    pub const IBV_WR_SEND_WITH_INV: ibv_wr_opcode = ibv_wr_opcode(9);
}
impl ibv_wr_opcode {
    pub const IBV_WR_TSO: ibv_wr_opcode = ibv_wr_opcode(10);
}
impl ibv_wr_opcode {
    pub const IBV_WR_DRIVER1: ibv_wr_opcode = ibv_wr_opcode(11);
}
impl ibv_wr_opcode {
    pub const IBV_WR_FLUSH: ibv_wr_opcode = ibv_wr_opcode(14);
}
impl ibv_wr_opcode {
    pub const IBV_WR_ATOMIC_WRITE: ibv_wr_opcode = ibv_wr_opcode(15);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wr_opcode(pub ::std::os::raw::c_uint);
impl ibv_send_flags {
    pub const IBV_SEND_FENCE: ibv_send_flags = ibv_send_flags(1);
}
impl ibv_send_flags {
    pub const IBV_SEND_SIGNALED: ibv_send_flags = ibv_send_flags(2);
}
impl ibv_send_flags {
    pub const IBV_SEND_SOLICITED: ibv_send_flags = ibv_send_flags(4);
}
impl ibv_send_flags {
    pub const IBV_SEND_INLINE: ibv_send_flags = ibv_send_flags(8);
}
impl ibv_send_flags {
    pub const IBV_SEND_IP_CSUM: ibv_send_flags = ibv_send_flags(16);
}
impl ::std::ops::BitOr<ibv_send_flags> for ibv_send_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_send_flags(self.0 | other.0)
    }
}
impl ::std::ops::BitOrAssign for ibv_send_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_send_flags) {
        self.0 |= rhs.0;
    }
}
impl ::std::ops::BitAnd<ibv_send_flags> for ibv_send_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_send_flags(self.0 & other.0)
    }
}
impl ::std::ops::BitAndAssign for ibv_send_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_send_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_send_flags(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::std::os::raw::c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: ::std::os::raw::c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut ::std::os::raw::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::std::os::raw::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: ::std::os::raw::c_uint,
    pub bind_info: ibv_mw_bind_info,
}
#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut ::std::os::raw::c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut ::std::os::raw::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: ::std::os::raw::c_int,
    pub refcnt: ::std::os::raw::c_int,
}
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut ::std::os::raw::c_void,
    pub handle: u32,
    pub cqe: ::std::os::raw::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ibv_device_ops {
    pub _dummy1: ::std::option::Option<
        unsafe extern "C" fn(
            device: *mut ibv_device,
            cmd_fd: ::std::os::raw::c_int,
        ) -> *mut ibv_context,
    >,
    pub _dummy2: ::std::option::Option<unsafe extern "C" fn(context: *mut ibv_context)>,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [::std::os::raw::c_char; 64usize],
    pub dev_name: [::std::os::raw::c_char; 64usize],
    pub dev_path: [::std::os::raw::c_char; 256usize],
    pub ibdev_path: [::std::os::raw::c_char; 256usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> ::std::os::raw::c_int,
    >,
    pub _compat_query_port: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> ::std::os::raw::c_int,
    >,
    pub _compat_alloc_pd:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_dealloc_pd:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_reg_mr:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_rereg_mr:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_dereg_mr:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub alloc_mw: ::std::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw,
    >,
    pub bind_mw: ::std::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            mw: *mut ibv_mw,
            mw_bind: *mut ibv_mw_bind,
        ) -> ::std::os::raw::c_int,
    >,
    pub dealloc_mw:
        ::std::option::Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> ::std::os::raw::c_int>,
    pub _compat_create_cq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub poll_cq: ::std::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: ::std::os::raw::c_int,
            wc: *mut ibv_wc,
        ) -> ::std::os::raw::c_int,
    >,
    pub req_notify_cq: ::std::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            solicited_only: ::std::os::raw::c_int,
        ) -> ::std::os::raw::c_int,
    >,
    pub _compat_cq_event:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_resize_cq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_destroy_cq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_create_srq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_modify_srq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_query_srq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_destroy_srq:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub post_srq_recv: ::std::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> ::std::os::raw::c_int,
    >,
    pub _compat_create_qp:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_query_qp:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_modify_qp:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_destroy_qp:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub post_send: ::std::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> ::std::os::raw::c_int,
    >,
    pub post_recv: ::std::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> ::std::os::raw::c_int,
    >,
    pub _compat_create_ah:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_destroy_ah:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_attach_mcast:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_detach_mcast:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
    pub _compat_async_event:
        ::std::option::Option<unsafe extern "C" fn() -> *mut ::std::os::raw::c_void>,
}
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: ::std::os::raw::c_int,
    pub async_fd: ::std::os::raw::c_int,
    pub num_comp_vectors: ::std::os::raw::c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut ::std::os::raw::c_void,
}
impl ibv_counter_description {
    pub const IBV_COUNTER_PACKETS: ibv_counter_description = ibv_counter_description(0);
}
impl ibv_counter_description {
    pub const IBV_COUNTER_BYTES: ibv_counter_description = ibv_counter_description(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_counter_description(pub ::std::os::raw::c_uint);
#[repr(C)]
pub struct verbs_context {
    pub dm_export_dmabuf_fd:
        ::std::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> ::std::os::raw::c_int>,
    pub reg_mr_ex: ::std::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr,
    >,
    pub dealloc_dmah:
        ::std::option::Option<unsafe extern "C" fn(dmah: *mut ibv_dmah) -> ::std::os::raw::c_int>,
    pub alloc_dmah: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_dmah_init_attr,
        ) -> *mut ibv_dmah,
    >,
    pub query_port: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> ::std::os::raw::c_int,
    >,
    pub advise_mr: ::std::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> ::std::os::raw::c_int,
    >,
    pub alloc_null_mr: ::std::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: ::std::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            counters_value: *mut u64,
            ncounters: u32,
            flags: u32,
        ) -> ::std::os::raw::c_int,
    >,
    pub attach_counters_point_flow: ::std::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            attr: *mut ibv_counter_attach_attr,
            flow: *mut ibv_flow,
        ) -> ::std::os::raw::c_int,
    >,
    pub create_counters: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_counters_init_attr,
        ) -> *mut ibv_counters,
    >,
    pub destroy_counters: ::std::option::Option<
        unsafe extern "C" fn(counters: *mut ibv_counters) -> ::std::os::raw::c_int,
    >,
    pub reg_dm_mr: ::std::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: ::std::os::raw::c_uint,
        ) -> *mut ibv_mr,
    >,
    pub alloc_dm: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm,
    >,
    pub free_dm:
        ::std::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> ::std::os::raw::c_int>,
    pub modify_flow_action_esp: ::std::option::Option<
        unsafe extern "C" fn(
            action: *mut ibv_flow_action,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> ::std::os::raw::c_int,
    >,
    pub destroy_flow_action: ::std::option::Option<
        unsafe extern "C" fn(action: *mut ibv_flow_action) -> ::std::os::raw::c_int,
    >,
    pub create_flow_action_esp: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> *mut ibv_flow_action,
    >,
    pub modify_qp_rate_limit: ::std::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_rate_limit_attr,
        ) -> ::std::os::raw::c_int,
    >,
    pub alloc_parent_domain: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    pub dealloc_td:
        ::std::option::Option<unsafe extern "C" fn(td: *mut ibv_td) -> ::std::os::raw::c_int>,
    pub alloc_td: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_td_init_attr,
        ) -> *mut ibv_td,
    >,
    pub modify_cq: ::std::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            attr: *mut ibv_modify_cq_attr,
        ) -> ::std::os::raw::c_int,
    >,
    pub post_srq_ops: ::std::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            op: *mut ibv_ops_wr,
            bad_op: *mut *mut ibv_ops_wr,
        ) -> ::std::os::raw::c_int,
    >,
    pub destroy_rwq_ind_table: ::std::option::Option<
        unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> ::std::os::raw::c_int,
    >,
    pub create_rwq_ind_table: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_rwq_ind_table_init_attr,
        ) -> *mut ibv_rwq_ind_table,
    >,
    pub destroy_wq:
        ::std::option::Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> ::std::os::raw::c_int>,
    pub modify_wq: ::std::option::Option<
        unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> ::std::os::raw::c_int,
    >,
    pub create_wq: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            wq_init_attr: *mut ibv_wq_init_attr,
        ) -> *mut ibv_wq,
    >,
    pub query_rt_values: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            values: *mut ibv_values_ex,
        ) -> ::std::os::raw::c_int,
    >,
    pub create_cq_ex: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> ::std::os::raw::c_int,
    >,
    pub ibv_destroy_flow:
        ::std::option::Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> ::std::os::raw::c_int>,
    pub ABI_placeholder2: ::std::option::Option<unsafe extern "C" fn()>,
    pub ibv_create_flow: ::std::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow,
    >,
    pub ABI_placeholder1: ::std::option::Option<unsafe extern "C" fn()>,
    pub open_qp: ::std::option::Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
    >,
    pub create_qp_ex: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    pub get_srq_num: ::std::option::Option<
        unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> ::std::os::raw::c_int,
    >,
    pub create_srq_ex: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    pub open_xrcd: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            xrcd_init_attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    pub close_xrcd:
        ::std::option::Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> ::std::os::raw::c_int>,
    pub _ABI_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
extern crate libloading;
pub struct IbVerbs {
    __library: ::libloading::Library,
    pub ibv_get_device_list: Result<
        unsafe extern "C" fn(num_devices: *mut ::std::os::raw::c_int) -> *mut *mut ibv_device,
        ::libloading::Error,
    >,
    pub ibv_free_device_list:
        Result<unsafe extern "C" fn(list: *mut *mut ibv_device), ::libloading::Error>,
    pub ibv_get_device_name: Result<
        unsafe extern "C" fn(device: *mut ibv_device) -> *const ::std::os::raw::c_char,
        ::libloading::Error,
    >,
    pub ibv_get_device_guid:
        Result<unsafe extern "C" fn(device: *mut ibv_device) -> __be64, ::libloading::Error>,
    pub ibv_open_device: Result<
        unsafe extern "C" fn(device: *mut ibv_device) -> *mut ibv_context,
        ::libloading::Error,
    >,
    pub ibv_close_device: Result<
        unsafe extern "C" fn(context: *mut ibv_context) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_get_async_event: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            event: *mut ibv_async_event,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_ack_async_event:
        Result<unsafe extern "C" fn(event: *mut ibv_async_event), ::libloading::Error>,
    pub ibv_query_device: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_query_port: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_query_port_speed: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u32,
            port_speed: *mut u64,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_query_gid: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            index: ::std::os::raw::c_int,
            gid: *mut ibv_gid,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub _ibv_query_gid_ex: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u32,
            gid_index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub _ibv_query_gid_table: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> isize,
        ::libloading::Error,
    >,
    pub ibv_alloc_pd:
        Result<unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_pd, ::libloading::Error>,
    pub ibv_dealloc_pd:
        Result<unsafe extern "C" fn(pd: *mut ibv_pd) -> ::std::os::raw::c_int, ::libloading::Error>,
    pub ibv_reg_mr_iova2: Result<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            addr: *mut ::std::os::raw::c_void,
            length: usize,
            iova: u64,
            access: ::std::os::raw::c_uint,
        ) -> *mut ibv_mr,
        ::libloading::Error,
    >,
    pub ibv_reg_mr: Result<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            addr: *mut ::std::os::raw::c_void,
            length: usize,
            access: ::std::os::raw::c_int,
        ) -> *mut ibv_mr,
        ::libloading::Error,
    >,
    pub ibv_reg_dmabuf_mr: Result<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: ::std::os::raw::c_int,
            access: ::std::os::raw::c_int,
        ) -> *mut ibv_mr,
        ::libloading::Error,
    >,
    pub ibv_dereg_mr:
        Result<unsafe extern "C" fn(mr: *mut ibv_mr) -> ::std::os::raw::c_int, ::libloading::Error>,
    pub ibv_create_comp_channel: Result<
        unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_comp_channel,
        ::libloading::Error,
    >,
    pub ibv_destroy_comp_channel: Result<
        unsafe extern "C" fn(channel: *mut ibv_comp_channel) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_create_cq: Result<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            cqe: ::std::os::raw::c_int,
            cq_context: *mut ::std::os::raw::c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: ::std::os::raw::c_int,
        ) -> *mut ibv_cq,
        ::libloading::Error,
    >,
    pub ibv_destroy_cq:
        Result<unsafe extern "C" fn(cq: *mut ibv_cq) -> ::std::os::raw::c_int, ::libloading::Error>,
    pub ibv_get_cq_event: Result<
        unsafe extern "C" fn(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut ::std::os::raw::c_void,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_ack_cq_events: Result<
        unsafe extern "C" fn(cq: *mut ibv_cq, nevents: ::std::os::raw::c_uint),
        ::libloading::Error,
    >,
    pub ibv_create_srq: Result<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            srq_init_attr: *mut ibv_srq_init_attr,
        ) -> *mut ibv_srq,
        ::libloading::Error,
    >,
    pub ibv_modify_srq: Result<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            srq_attr: *mut ibv_srq_attr,
            srq_attr_mask: ::std::os::raw::c_int,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_query_srq: Result<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            srq_attr: *mut ibv_srq_attr,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_destroy_srq: Result<
        unsafe extern "C" fn(srq: *mut ibv_srq) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_create_qp: Result<
        unsafe extern "C" fn(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp,
        ::libloading::Error,
    >,
    pub ibv_modify_qp: Result<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: ::std::os::raw::c_int,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_query_qp: Result<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: ::std::os::raw::c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> ::std::os::raw::c_int,
        ::libloading::Error,
    >,
    pub ibv_destroy_qp:
        Result<unsafe extern "C" fn(qp: *mut ibv_qp) -> ::std::os::raw::c_int, ::libloading::Error>,
}
impl IbVerbs {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: AsRef<::std::ffi::OsStr>,
    {
        let library = ::libloading::Library::new(path)?;
        Self::from_library(library)
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let ibv_get_device_list = __library.get(b"ibv_get_device_list\0").map(|sym| *sym);
        let ibv_free_device_list = __library.get(b"ibv_free_device_list\0").map(|sym| *sym);
        let ibv_get_device_name = __library.get(b"ibv_get_device_name\0").map(|sym| *sym);
        let ibv_get_device_guid = __library.get(b"ibv_get_device_guid\0").map(|sym| *sym);
        let ibv_open_device = __library.get(b"ibv_open_device\0").map(|sym| *sym);
        let ibv_close_device = __library.get(b"ibv_close_device\0").map(|sym| *sym);
        let ibv_get_async_event = __library.get(b"ibv_get_async_event\0").map(|sym| *sym);
        let ibv_ack_async_event = __library.get(b"ibv_ack_async_event\0").map(|sym| *sym);
        let ibv_query_device = __library.get(b"ibv_query_device\0").map(|sym| *sym);
        let ibv_query_port = __library.get(b"ibv_query_port\0").map(|sym| *sym);
        let ibv_query_port_speed = __library.get(b"ibv_query_port_speed\0").map(|sym| *sym);
        let ibv_query_gid = __library.get(b"ibv_query_gid\0").map(|sym| *sym);
        let _ibv_query_gid_ex = __library.get(b"_ibv_query_gid_ex\0").map(|sym| *sym);
        let _ibv_query_gid_table = __library.get(b"_ibv_query_gid_table\0").map(|sym| *sym);
        let ibv_alloc_pd = __library.get(b"ibv_alloc_pd\0").map(|sym| *sym);
        let ibv_dealloc_pd = __library.get(b"ibv_dealloc_pd\0").map(|sym| *sym);
        let ibv_reg_mr_iova2 = __library.get(b"ibv_reg_mr_iova2\0").map(|sym| *sym);
        let ibv_reg_mr = __library.get(b"ibv_reg_mr\0").map(|sym| *sym);
        let ibv_reg_dmabuf_mr = __library.get(b"ibv_reg_dmabuf_mr\0").map(|sym| *sym);
        let ibv_dereg_mr = __library.get(b"ibv_dereg_mr\0").map(|sym| *sym);
        let ibv_create_comp_channel = __library.get(b"ibv_create_comp_channel\0").map(|sym| *sym);
        let ibv_destroy_comp_channel = __library.get(b"ibv_destroy_comp_channel\0").map(|sym| *sym);
        let ibv_create_cq = __library.get(b"ibv_create_cq\0").map(|sym| *sym);
        let ibv_destroy_cq = __library.get(b"ibv_destroy_cq\0").map(|sym| *sym);
        let ibv_get_cq_event = __library.get(b"ibv_get_cq_event\0").map(|sym| *sym);
        let ibv_ack_cq_events = __library.get(b"ibv_ack_cq_events\0").map(|sym| *sym);
        let ibv_create_srq = __library.get(b"ibv_create_srq\0").map(|sym| *sym);
        let ibv_modify_srq = __library.get(b"ibv_modify_srq\0").map(|sym| *sym);
        let ibv_query_srq = __library.get(b"ibv_query_srq\0").map(|sym| *sym);
        let ibv_destroy_srq = __library.get(b"ibv_destroy_srq\0").map(|sym| *sym);
        let ibv_create_qp = __library.get(b"ibv_create_qp\0").map(|sym| *sym);
        let ibv_modify_qp = __library.get(b"ibv_modify_qp\0").map(|sym| *sym);
        let ibv_query_qp = __library.get(b"ibv_query_qp\0").map(|sym| *sym);
        let ibv_destroy_qp = __library.get(b"ibv_destroy_qp\0").map(|sym| *sym);
        Ok(IbVerbs {
            __library,
            ibv_get_device_list,
            ibv_free_device_list,
            ibv_get_device_name,
            ibv_get_device_guid,
            ibv_open_device,
            ibv_close_device,
            ibv_get_async_event,
            ibv_ack_async_event,
            ibv_query_device,
            ibv_query_port,
            ibv_query_port_speed,
            ibv_query_gid,
            _ibv_query_gid_ex,
            _ibv_query_gid_table,
            ibv_alloc_pd,
            ibv_dealloc_pd,
            ibv_reg_mr_iova2,
            ibv_reg_mr,
            ibv_reg_dmabuf_mr,
            ibv_dereg_mr,
            ibv_create_comp_channel,
            ibv_destroy_comp_channel,
            ibv_create_cq,
            ibv_destroy_cq,
            ibv_get_cq_event,
            ibv_ack_cq_events,
            ibv_create_srq,
            ibv_modify_srq,
            ibv_query_srq,
            ibv_destroy_srq,
            ibv_create_qp,
            ibv_modify_qp,
            ibv_query_qp,
            ibv_destroy_qp,
        })
    }
    pub unsafe fn ibv_get_device_list(
        &self,
        num_devices: *mut ::std::os::raw::c_int,
    ) -> *mut *mut ibv_device {
        (self
            .ibv_get_device_list
            .as_ref()
            .expect("Expected function, got error."))(num_devices)
    }
    pub unsafe fn ibv_free_device_list(&self, list: *mut *mut ibv_device) -> () {
        (self
            .ibv_free_device_list
            .as_ref()
            .expect("Expected function, got error."))(list)
    }
    pub unsafe fn ibv_get_device_name(
        &self,
        device: *mut ibv_device,
    ) -> *const ::std::os::raw::c_char {
        (self
            .ibv_get_device_name
            .as_ref()
            .expect("Expected function, got error."))(device)
    }
    pub unsafe fn ibv_get_device_guid(&self, device: *mut ibv_device) -> __be64 {
        (self
            .ibv_get_device_guid
            .as_ref()
            .expect("Expected function, got error."))(device)
    }
    pub unsafe fn ibv_open_device(&self, device: *mut ibv_device) -> *mut ibv_context {
        (self
            .ibv_open_device
            .as_ref()
            .expect("Expected function, got error."))(device)
    }
    pub unsafe fn ibv_close_device(&self, context: *mut ibv_context) -> ::std::os::raw::c_int {
        (self
            .ibv_close_device
            .as_ref()
            .expect("Expected function, got error."))(context)
    }
    pub unsafe fn ibv_get_async_event(
        &self,
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_get_async_event
            .as_ref()
            .expect("Expected function, got error."))(context, event)
    }
    pub unsafe fn ibv_ack_async_event(&self, event: *mut ibv_async_event) -> () {
        (self
            .ibv_ack_async_event
            .as_ref()
            .expect("Expected function, got error."))(event)
    }
    pub unsafe fn ibv_query_device(
        &self,
        context: *mut ibv_context,
        device_attr: *mut ibv_device_attr,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_device
            .as_ref()
            .expect("Expected function, got error."))(context, device_attr)
    }
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_port
            .as_ref()
            .expect("Expected function, got error."))(context, port_num, port_attr)
    }
    pub unsafe fn ibv_query_port_speed(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        port_speed: *mut u64,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_port_speed
            .as_ref()
            .expect("Expected function, got error."))(context, port_num, port_speed)
    }
    pub unsafe fn ibv_query_gid(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        index: ::std::os::raw::c_int,
        gid: *mut ibv_gid,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_gid
            .as_ref()
            .expect("Expected function, got error."))(context, port_num, index, gid)
    }
    pub unsafe fn _ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> ::std::os::raw::c_int {
        (self
            ._ibv_query_gid_ex
            .as_ref()
            .expect("Expected function, got error."))(
            context, port_num, gid_index, entry, flags, entry_size,
        )
    }
    pub unsafe fn _ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize {
        (self
            ._ibv_query_gid_table
            .as_ref()
            .expect("Expected function, got error."))(
            context,
            entries,
            max_entries,
            flags,
            entry_size,
        )
    }
    pub unsafe fn ibv_alloc_pd(&self, context: *mut ibv_context) -> *mut ibv_pd {
        (self
            .ibv_alloc_pd
            .as_ref()
            .expect("Expected function, got error."))(context)
    }
    pub unsafe fn ibv_dealloc_pd(&self, pd: *mut ibv_pd) -> ::std::os::raw::c_int {
        (self
            .ibv_dealloc_pd
            .as_ref()
            .expect("Expected function, got error."))(pd)
    }
    pub unsafe fn ibv_reg_mr_iova2(
        &self,
        pd: *mut ibv_pd,
        addr: *mut ::std::os::raw::c_void,
        length: usize,
        iova: u64,
        access: ::std::os::raw::c_uint,
    ) -> *mut ibv_mr {
        (self
            .ibv_reg_mr_iova2
            .as_ref()
            .expect("Expected function, got error."))(pd, addr, length, iova, access)
    }
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut ::std::os::raw::c_void,
        length: usize,
        access: ::std::os::raw::c_int,
    ) -> *mut ibv_mr {
        (self
            .ibv_reg_mr
            .as_ref()
            .expect("Expected function, got error."))(pd, addr, length, access)
    }
    pub unsafe fn ibv_reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: ::std::os::raw::c_int,
        access: ::std::os::raw::c_int,
    ) -> *mut ibv_mr {
        (self
            .ibv_reg_dmabuf_mr
            .as_ref()
            .expect("Expected function, got error."))(pd, offset, length, iova, fd, access)
    }
    pub unsafe fn ibv_dereg_mr(&self, mr: *mut ibv_mr) -> ::std::os::raw::c_int {
        (self
            .ibv_dereg_mr
            .as_ref()
            .expect("Expected function, got error."))(mr)
    }
    pub unsafe fn ibv_create_comp_channel(
        &self,
        context: *mut ibv_context,
    ) -> *mut ibv_comp_channel {
        (self
            .ibv_create_comp_channel
            .as_ref()
            .expect("Expected function, got error."))(context)
    }
    pub unsafe fn ibv_destroy_comp_channel(
        &self,
        channel: *mut ibv_comp_channel,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_destroy_comp_channel
            .as_ref()
            .expect("Expected function, got error."))(channel)
    }
    pub unsafe fn ibv_create_cq(
        &self,
        context: *mut ibv_context,
        cqe: ::std::os::raw::c_int,
        cq_context: *mut ::std::os::raw::c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: ::std::os::raw::c_int,
    ) -> *mut ibv_cq {
        (self
            .ibv_create_cq
            .as_ref()
            .expect("Expected function, got error."))(
            context,
            cqe,
            cq_context,
            channel,
            comp_vector,
        )
    }
    pub unsafe fn ibv_destroy_cq(&self, cq: *mut ibv_cq) -> ::std::os::raw::c_int {
        (self
            .ibv_destroy_cq
            .as_ref()
            .expect("Expected function, got error."))(cq)
    }
    pub unsafe fn ibv_get_cq_event(
        &self,
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_get_cq_event
            .as_ref()
            .expect("Expected function, got error."))(channel, cq, cq_context)
    }
    pub unsafe fn ibv_ack_cq_events(&self, cq: *mut ibv_cq, nevents: ::std::os::raw::c_uint) -> () {
        (self
            .ibv_ack_cq_events
            .as_ref()
            .expect("Expected function, got error."))(cq, nevents)
    }
    pub unsafe fn ibv_create_srq(
        &self,
        pd: *mut ibv_pd,
        srq_init_attr: *mut ibv_srq_init_attr,
    ) -> *mut ibv_srq {
        (self
            .ibv_create_srq
            .as_ref()
            .expect("Expected function, got error."))(pd, srq_init_attr)
    }
    pub unsafe fn ibv_modify_srq(
        &self,
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_modify_srq
            .as_ref()
            .expect("Expected function, got error."))(srq, srq_attr, srq_attr_mask)
    }
    pub unsafe fn ibv_query_srq(
        &self,
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_srq
            .as_ref()
            .expect("Expected function, got error."))(srq, srq_attr)
    }
    pub unsafe fn ibv_destroy_srq(&self, srq: *mut ibv_srq) -> ::std::os::raw::c_int {
        (self
            .ibv_destroy_srq
            .as_ref()
            .expect("Expected function, got error."))(srq)
    }
    pub unsafe fn ibv_create_qp(
        &self,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> *mut ibv_qp {
        (self
            .ibv_create_qp
            .as_ref()
            .expect("Expected function, got error."))(pd, qp_init_attr)
    }
    pub unsafe fn ibv_modify_qp(
        &self,
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_modify_qp
            .as_ref()
            .expect("Expected function, got error."))(qp, attr, attr_mask)
    }
    pub unsafe fn ibv_query_qp(
        &self,
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::std::os::raw::c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> ::std::os::raw::c_int {
        (self
            .ibv_query_qp
            .as_ref()
            .expect("Expected function, got error."))(qp, attr, attr_mask, init_attr)
    }
    pub unsafe fn ibv_destroy_qp(&self, qp: *mut ibv_qp) -> ::std::os::raw::c_int {
        (self
            .ibv_destroy_qp
            .as_ref()
            .expect("Expected function, got error."))(qp)
    }
}
