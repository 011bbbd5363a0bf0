/* Xid numbers: what they mean and whether they are this machine's fault. */
#include "doctor_machine.h"

static const struct {
    int first, last, weight;
    const char *text;
} xids[] = {
    {13, 13, 0, "a kernel's exception: mostly the application's"},
    {31, 31, 0, "memory page fault of a kernel: mostly the application's"},
    {43, 43, 0, "a channel stopped: the application's"},
    {45, 45, 0, "clean-up after another Xid: look for the first one"},
    {48, 48, 2, "double-bit memory error: drain the GPU, reset it; again: replace it"},
    {54, 54, 2, "the auxiliary power cable is missing: check the GPU's power plugs"},
    {62, 62, 2, "the GPU's micro-controller halted: power states, driver; reset the GPU"},
    {63, 63, 0, "a memory row was remapped: the GPU repaired itself, reset it when convenient"},
    {64, 64, 2, "a memory row could not be remapped: replace the GPU"},
    {74, 74, 2, "NVLink error: check the bridge's seating, nvidia-smi nvlink -e"},
    {79, 79, 2, "the GPU fell off the bus: temperature, power, seating, riser"},
    {92, 92, 1, "many single-bit memory errors: watch it"},
    {94, 94, 1, "contained memory error: the job that had it must restart"},
    {95, 95, 2, "uncontained memory error: reset the GPU"},
    {109, 109, 1, "context switch timed out: driver, or a hung kernel"},
    {119, 120, 2, "the GPU's system processor (GSP) does not answer: update the driver, reset"},
    {136, 136, 2, "NVLink training failed: seating, reset"},
    {140, 140, 2, "unrecovered ECC error: reset the GPU"},
    {144, 150, 2, "NVLink 5 error: nvidia-smi nvlink -e, cables and switches"},
    {154, 154, 1, "the driver says what recovery the GPU needs: read the line"},
    {158, 158, 2, "fatal time-out in the GPU: reset it"},
    {167, 167, 2, "fatal PCIe time-out: seating, riser, root port"},
};

static int find(int xid)
{
    for (int i = 0; i < (int)(sizeof xids / sizeof *xids); i++) {
        if (xid >= xids[i].first && xid <= xids[i].last) {
            return i;
        }
    }
    return -1;
}

const char *doctor_xid_text(int xid)
{
    int i = find(xid);
    return i < 0 ? "not known to llane: see NVIDIA's list of Xid errors" : xids[i].text;
}

int doctor_xid_weight(int xid)
{
    int i = find(xid);
    return i < 0 ? 1 : xids[i].weight;
}
