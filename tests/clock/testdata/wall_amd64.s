#include "textflag.h"

// func wall: clock_gettime(2) as the kernel's vDSO has it, called as C calls it, with the wall clock ahead.
TEXT ·wall(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ DI
	PUSHQ SI
	SUBQ  $8, SP // aligns the stack
	MOVQ  ·real(SB), AX
	CALL  AX
	ADDQ  $8, SP
	POPQ  SI
	POPQ  DI
	TESTL DI, DI // CLOCK_REALTIME
	JNZ   done
	MOVQ  ·ahead(SB), CX
	MOVQ  (CX), CX
	ADDQ  CX, (SI) // seconds
done:
	RET

// func entry returns the address of wall.
TEXT ·entry(SB), NOSPLIT, $0-8
	LEAQ ·wall(SB), AX
	MOVQ AX, ret+0(FP)
	RET
