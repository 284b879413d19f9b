/*
 * What PyTorch needs of an NCCL that is later than the double, so that it can be loaded with that: nothing here is
 * ever called.
 */
#define LATER(name)                                                           \
    int name(void);                                                           \
    int name(void)                                                            \
    {                                                                         \
        return 3; /* ncclInternalError */                                     \
    }

LATER(ncclCommGetUniqueId)
LATER(ncclCommResume)
LATER(ncclCommRevoke)
LATER(ncclCommSuspend)
LATER(ncclDevCommCreate)
LATER(ncclDevCommDestroy)
LATER(ncclGetLsaMultimemDevicePointer)
LATER(ncclGetPeerDevicePointer)
LATER(ncclPutSignal)
LATER(ncclSignal)
LATER(ncclWaitSignal)
LATER(ncclWinGetUserPtr)
