(* A certificate of `flashsim prove`, checked here. Its numbers are binary, so that large ones can be computed with. *)

From Coq Require Import NArith Nnat Lia.
Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import model forward.

Definition valid (pairs d d_v M Y n bound : N) : bool :=
  ((M <? Y) && (2 <=? n) && ((n - 1) * (Y * Y) <? 16 * d * (pairs * d_v))
   && ((n - 1) * (n - 1) * (Y * Y * Y) <? 27 * ((pairs * d_v) * (pairs * d_v))) && (bound <=? Y + (n - 2) * (Y - M)))%num.

Lemma below {a b} : (a < b)%num -> (N.to_nat a < N.to_nat b)%coq_nat. Proof. lia. Qed.

Theorem certified (N_q N_k pairs d d_v M Y n bound : N) (allowed : {set 'I_(N.to_nat N_q) * 'I_(N.to_nat N_k)})
    (steps : run (N.to_nat N_q) (N.to_nat N_k) (N.to_nat d) (N.to_nat d_v)) :
  valid pairs d d_v M Y n bound -> #|allowed| = N.to_nat pairs -> attention (N.to_nat M) allowed steps ->
  (bound <= N.of_nat (accesses steps))%num.
Proof.
case/andP=> /andP[/andP[/andP[more two] wide] deep] least size legal.
have {}more := proj1 (N.ltb_lt _ _) more; have {}two := proj1 (N.leb_le _ _) two.
have {}wide := below (proj1 (N.ltb_lt _ _) wide); have {}deep := below (proj1 (N.ltb_lt _ _) deep).
have {}least := proj1 (N.leb_le _ _) least.
have := @phases_bound _ _ _ _ _ allowed (N.to_nat Y) (N.to_nat n) steps legal; rewrite size /=.
rewrite !N2Nat.inj_mul !N2Nat.inj_sub /= in wide deep.
move=> /(_ _ _ _ _) bound_is.
have : N.to_nat Y + (N.to_nat n - 2) * (N.to_nat Y - N.to_nat M) < accesses steps.
  by apply: bound_is; apply/ltP; rewrite -?subn1 -?multE -?minusE //; lia.
have : N.to_nat (Y + (n - 2) * (Y - M))%num = N.to_nat Y + (N.to_nat n - 2) * (N.to_nat Y - N.to_nat M).
  by rewrite N2Nat.inj_add N2Nat.inj_mul !N2Nat.inj_sub.
by move=> <- /ltP; lia.
Qed.

Corollary certified_all (N_q N_k d d_v M Y n bound : N)
    (steps : run (N.to_nat N_q) (N.to_nat N_k) (N.to_nat d) (N.to_nat d_v)) :
  valid (N_q * N_k) d d_v M Y n bound -> attention (N.to_nat M) setT steps -> (bound <= N.of_nat (accesses steps))%num.
Proof.
move=> ok; apply: certified ok _.
by rewrite cardsT card_prod !card_ord -multE N2Nat.inj_mul.
Qed.

(* flashsim prove --N 4096 --d 64 --M 25600 *)
Example prove_md (steps : run (N.to_nat 4096) (N.to_nat 4096) (N.to_nat 64) (N.to_nat 64)) :
  attention (N.to_nat 25600) setT steps -> (10762900 <= N.of_nat (accesses steps))%num.
Proof. by apply: (@certified_all _ _ _ _ _ 51165 421); vm_compute. Qed.

Print Assumptions phases_bound.
Print Assumptions forward_bound_all.
Print Assumptions compulsory.
Print Assumptions certified_all.
Print Assumptions smallest.
