(* What a phase can do: steps 1 to 6 of the proof in flashsim/theory/bounds/forward.py. *)

From Coq Require Import Lia.
Set Warnings "-notation-overridden".
From mathcomp Require Import all_ssreflect.
From Proofs Require Import arithmetic loomis_whitney model.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Phases.
Variables N_q N_k d d_v M : nat.
Variable allowed : {set 'I_N_q * 'I_N_k}.
Notation word := (word N_q N_k d d_v).
Notation operation := (operation N_q N_k d d_v).
Notation run := (run N_q N_k d d_v).
Notation legal := (legal M allowed).
Notation output := ('I_N_q * 'I_d_v)%type.

(* What a word is of: parts of one sum are of one thing. *)
Definition thing := ('I_N_q * 'I_d + ('I_N_k * 'I_d + ('I_N_k * 'I_d_v + ('I_N_q * 'I_N_k + output))))%type.
Definition of_Q x : thing := inl x.
Definition of_K x : thing := inr (inl x).
Definition of_V x : thing := inr (inr (inl x)).
Definition of_pair x : thing := inr (inr (inr (inl x))).
Definition of_out x : thing := inr (inr (inr (inr x))).

Definition about (w : word) : thing :=
  match w with
  | Q i c => of_Q (i, c)
  | K k c => of_K (k, c)
  | V k c => of_V (k, c)
  | Pair i k _ => of_pair (i, k)
  | Out i c _ => of_out (i, c)
  end.

Definition things (chip : {set word}) : {set thing} := about @: chip.

Definition outs (chip : {set word}) : {set output} := [set x | of_out x \in things chip].

Lemma out_on_chip i c s (chip : {set word}) : Out i c s \in chip -> (i, c) \in outs chip.
Proof. by move=> on_chip; rewrite inE; apply/imsetP; exists (Out i c s). Qed.

(* Outputs on chip that will be stored before all parts of them have left the chip. *)
Definition stored (o : operation) : {set output} := if o is Store (Out i c _) then [set (i, c)] else set0.

Fixpoint pend (chip : {set word}) (steps : run) : {set output} :=
  if steps is (o, after) :: rest then outs chip :&: (stored o :|: pend after rest) else set0.

Lemma pend_outs chip steps : pend chip steps \subset outs chip.
Proof. by case: steps => [|[o after] rest] /=; [apply: sub0set | apply: subsetIl]. Qed.

(* A step, with what is on chip before it, and what is pending after it. *)
Record moment := Moment {before : {set word}; op : operation; after : {set word}; pending : {set output}}.

Fixpoint trace (chip : {set word}) (steps : run) : seq moment :=
  if steps is (o, after) :: rest then Moment chip o after (pend after rest) :: trace after rest else [::].

(* Step 2. What a step is charged for: a load of what is not an output, or an output that begins to be on chip and will be
   stored from there. *)
Definition loaded (o : operation) : {set thing} :=
  match o with Load (Out _ _ _) => set0 | Load w => [set about w] | _ => set0 end.

Definition charged (a : moment) : {set thing} := loaded (op a) :|: of_out @: (pending a :\: outs (before a)).

Definition charges (l : seq moment) : nat := \sum_(a <- l) #|charged a|.

Lemma of_out_inj : injective of_out. Proof. by move=> ? ? []. Qed.

Lemma charges_are_accesses chip steps : charges (trace chip steps) + #|pend chip steps| <= accesses steps.
Proof.
rewrite /charges; elim: steps chip => [|[o after] rest IH] chip /=; first by rewrite big_nil cards0.
rewrite big_cons /charged /=; set new := pend after rest.
have own : #|loaded o| + #|stored o| <= access o.
  by case: o => [[]|[]|||| ] * //=; rewrite ?cards1 ?cards0.
have kept : #|outs chip :&: (stored o :|: new)| <= #|stored o| + #|new :&: outs chip|.
  rewrite setIUr (leq_trans (leq_card_setU _ _)) // leq_add ?subset_leq_card ?subsetIr //.
  by rewrite setIC.
have fresh : #|loaded o :|: of_out @: (new :\: outs chip)| <= #|loaded o| + #|new :\: outs chip|.
  by rewrite (leq_trans (leq_card_setU _ _)) // leq_add2l leq_imset_card.
have := IH after; rewrite -/new -(cardsID (outs chip) new) => rest_ok.
apply: (leq_trans (leq_add (leq_add fresh (leqnn _)) kept)).
set r := \sum_(_ <- _) _ in rest_ok *.
have -> : #|loaded o| + #|new :\: outs chip| + r + (#|stored o| + #|new :&: outs chip|)
        = #|loaded o| + #|stored o| + (r + (#|new :&: outs chip| + #|new :\: outs chip|)).
  by rewrite -!plusE; lia.
by apply: leq_add.
Qed.

(* Steps that follow one another, from what is on chip and pending at first. *)
Definition sound (a : moment) : Prop :=
  [/\ exists hbm, possible hbm (before a) (op a), after a \subset result (op a) |: before a, #|after a| <= M
    & pending a \subset outs (after a)].

Fixpoint chained (chip : {set word}) (waiting : {set output}) (l : seq moment) : Prop :=
  if l is a :: rest
  then [/\ before a = chip, sound a, outs chip :&: pending a \subset waiting & chained (after a) (pending a) rest]
  else True.

Lemma trace_chained hbm chip steps : legal hbm chip steps -> chained chip (pend chip steps) (trace chip steps).
Proof.
elim: steps hbm chip => [//|[o after] rest IH] hbm chip /= [ok new room ends].
split=> //; last by apply: IH ends.
  by split=> //=; [exists hbm | apply: pend_outs].
by apply: setIS; apply: subsetUr.
Qed.

(* The useful multiplications P_ik V_kc: those into an output that will be stored from there. *)
Definition point (a : moment) : {set 'I_N_q * 'I_N_k * 'I_d_v} :=
  if op a is Multiply_PV i k c _ then (if (i, c) \in pending a then [set (i, k, c)] else set0) else set0.

Definition points (l : seq moment) : {set 'I_N_q * 'I_N_k * 'I_d_v} := \bigcup_(a <- l) point a.

Lemma points_cat l m : points (l ++ m) = points l :|: points m.
Proof. by rewrite /points big_cat. Qed.

(* Step 1. A sum that is in HBM at the end has each of its terms from a useful multiplication, or had it at first. *)
Lemma term_is_made (hbm chip : {set word}) steps i k c : legal hbm chip steps -> (i, k) \in allowed ->
  [\/ exists2 s : {set 'I_N_k}, k \in s & Out i c s \in hbm,
      exists2 s : {set 'I_N_k}, k \in s & (Out i c s \in chip) && ((i, c) \in pend chip steps)
    | (i, k, c) \in points (trace chip steps)].
Proof.
move=> legal_steps wanted; elim: steps hbm chip legal_steps => [|[o after] rest IH] hbm chip /=.
  by move=> /(_ i k c wanted) done; apply: Or31; exists (row allowed i); rewrite // inE.
case=> ok new room /IH; rewrite /points big_cons in_setU => -[[s ks in_hbm] | [s ks] /andP[on_chip waits] | later].
- case: o ok new in_hbm => [w|w|????|????|????|????] /= ok new; try by move=> in_hbm; apply: Or31; exists s.
  rewrite in_setU1 => /orP[/eqP w_is|in_hbm]; last by apply: Or31; exists s.
  subst w; apply: Or32; exists s => //=; rewrite ok in_setI (out_on_chip ok) /=.
  by rewrite in_setU set11.
- have stays s' : Out i c s' \in chip -> (i, c) \in outs chip :&: (stored o :|: pend after rest).
    by move=> before; rewrite !inE waits orbT andbT; have := out_on_chip before; rewrite inE.
  have held (s' : {set 'I_N_k}) : k \in s' -> Out i c s' \in chip -> exists2 s : {set 'I_N_k}, k \in s &
      (Out i c s \in chip) && ((i, c) \in outs chip :&: (stored o :|: pend after rest)).
    by move=> ks' before; exists s' => //; rewrite before (stays s').
  move: (subsetP new _ on_chip); rewrite in_setU1 => /orP[/eqP|]; last by move=> ?; apply: Or32; apply: held ks _.
  case: o ok new stays held => [w|w|????|????|i' k' c' t|i' c' t u] //= ok new stays held.
  + by move=> w_is; apply: Or31; exists s; rewrite // w_is.
  + by move=> w_is; apply: Or32; apply: held ks _; rewrite w_is.
  + case=> i_is c_is s_is; subst i' c' s; case/and3P: ok => _ _ rest_of_it.
    move: ks; rewrite in_setU1 => /orP[/eqP k_is|kt].
      by apply: Or33; rewrite /point /= waits -k_is set11.
    case/orP: rest_of_it => [/eqP none|part]; first by rewrite none inE in kt.
    by apply: Or32; apply: held kt part.
  + case=> i_is c_is s_is; subst i' c' s; case/andP: ok => one other.
    by move: ks; rewrite inE => /orP[kt|ku]; apply: Or32; [apply: held kt one | apply: held ku other].
- by apply: Or33; rewrite later orbT.
Qed.

(* Steps 3 and 4. T has all that is on chip at first, and all that is charged. *)
Section Touched.
Variable T : {set thing}.

Definition computed (i : 'I_N_q) (k : 'I_N_k) (s : {set 'I_d}) : bool :=
  [forall c in s, (of_Q (i, c) \in T) && (of_K (k, c) \in T)].

Definition explained (w : word) : bool :=
  match w with
  | Pair i k s => (of_pair (i, k) \in T) || computed i k s
  | Out _ _ _ => true
  | _ => about w \in T
  end.

Lemma step_explained a : sound a -> charged a \subset T ->
  (forall w, w \in before a -> explained w) -> forall w, w \in after a -> explained w.
Proof.
case=> -[hbm ok] new _ _; rewrite subUset => /andP[loads _] all w /(subsetP new).
rewrite in_setU1 => /orP[/eqP ->|]; last exact: all.
case: (op a) ok loads => [w'|w'|i k c s|i k s t|//|//] /=.
- by case: w' => [i c|k c|k c|i k s|i c s] /= _ //; rewrite sub1set => ->.
- by move=> ? _; apply: all.
- case/and3P => /all /= Qc /all /= Kc part _.
  have [|out /=] := boolP (of_pair (i, k) \in T) => [//|].
  apply/forallP => c'; apply/implyP; rewrite in_setU1 => /orP[/eqP ->|cs]; first by rewrite Qc Kc.
  case/orP: part => [/eqP none|/all /=]; first by rewrite none inE in cs.
  by rewrite (negbTE out) /= => /forallP /(_ c'); rewrite cs.
- case/andP => /all /= one /all /= other _.
  have [|out /=] := boolP (of_pair (i, k) \in T) => [//|].
  rewrite (negbTE out) /= in one other.
  apply/forallP => c'; apply/implyP; rewrite inE => /orP[cs|ct].
    by move/forallP: one => /(_ c'); rewrite cs.
  by move/forallP: other => /(_ c'); rewrite ct.
Qed.

Lemma points_explained l chip waiting i k c : chained chip waiting l -> (forall a, List.In a l -> charged a \subset T) ->
  (forall w, w \in chip -> explained w) -> (forall x, x \in waiting -> of_out x \in T) -> (i, k, c) \in points l ->
  [/\ of_out (i, c) \in T, of_V (k, c) \in T & explained (Pair i k setT)].
Proof.
elim: l chip waiting => [|a l IH] chip waiting /=; first by rewrite /points big_nil inE.
case=> before_is sound_a old more paid chip_ok waiting_ok; rewrite /points big_cons inE.
have paid_a : charged a \subset T by apply: paid; left.
have pending_ok x : x \in pending a -> of_out x \in T.
  move=> pend_x; have [here|fresh] := boolP (x \in outs chip).
    by apply: waiting_ok; apply: (subsetP old); rewrite inE here.
  apply: (subsetP paid_a); rewrite inE; apply/orP; right; apply: imset_f.
  by rewrite inE before_is fresh.
case/orP => [|later]; last first.
  apply: (IH (after a) (pending a)) later => //; first by move=> ? ?; apply: paid; right.
  by apply: step_explained => //; rewrite before_is.
rewrite /point; case: sound_a => -[hbm ok] _ _ _.
case: (op a) ok => [?|?|????|????|i' k' c' s|????] /= ok; rewrite ?inE //.
case: ifP => [waits|]; rewrite ?inE // => /eqP[-> -> ->].
case/and3P: ok; rewrite before_is => /chip_ok whole /chip_ok /= in_V _.
by split=> //; apply: pending_ok.
Qed.
End Touched.

Lemma card_sum (A B : finType) (S : {set A + B}) : #|S| = #|[set a | inl a \in S]| + #|[set b | inr b \in S]|.
Proof.
by rewrite -sum1_card big_sumType /= -!sum1_card; congr (_ + _); apply: eq_bigl => x; rewrite inE.
Qed.

Lemma card_things (S : {set thing}) : #|S| = #|[set x | of_Q x \in S]|
  + (#|[set x | of_K x \in S]| + (#|[set x | of_V x \in S]| + (#|[set x | of_pair x \in S]| + #|[set x | of_out x \in S]|))).
Proof. by rewrite !card_sum; congr (_ + (_ + (_ + (_ + _)))); apply: eq_card => x; rewrite !inE. Qed.

Definition touched (chip : {set word}) (l : seq moment) : {set thing} := things chip :|: \bigcup_(a <- l) charged a.

Lemma card_touched chip l : #|touched chip l| <= #|chip| + charges l.
Proof.
rewrite (leq_trans (leq_card_setU _ _)) // leq_add ?leq_imset_card //.
rewrite /charges; elim: l => [|a l IH]; first by rewrite !big_nil cards0.
by rewrite !big_cons (leq_trans (leq_card_setU _ _)) // leq_add2l.
Qed.

Lemma charged_touched chip l a : List.In a l -> charged a \subset touched chip l.
Proof.
move=> inside; apply: subset_trans (subsetUr _ _).
elim: l inside => [//|b l IH] /= [->|/IH inside]; rewrite big_cons; first exact: subsetUl.
exact: subset_trans inside (subsetUr _ _).
Qed.

(* Steps 5 and 6: what is touched bounds the useful terms. *)
Lemma phase_terms Y chip waiting l : chained chip waiting l -> waiting \subset outs chip -> #|chip| + charges l <= Y ->
  16 * d * #|points l| <= Y * Y \/ 27 * (#|points l| * #|points l|) <= Y * Y * Y.
Proof.
move=> chain waits room; set T := touched chip l; pose e := points l.
have all_explained i k c : (i, k, c) \in e ->
    [/\ of_out (i, c) \in T, of_V (k, c) \in T & explained T (Pair i k setT)].
  apply: (points_explained chain); first by move=> ?; apply: charged_touched.
    move=> w on_chip; have in_T : about w \in T by rewrite inE imset_f.
    by case: w in_T {on_chip} => //= *; apply/orP; left.
  by move=> x /(subsetP waits); rewrite !inE => ->.
have room_T : #|T| <= Y by apply: leq_trans (card_touched chip l) room.
clearbody T.
pose pairs := [set p : 'I_N_q * 'I_N_k | explained T (Pair p.1 p.2 setT)].
pose queries := [set i : 'I_N_q | [forall c, of_Q (i, c) \in T]].
pose keys := [set k : 'I_N_k | [forall c, of_K (k, c) \in T]].
pose A_Q := [set x | of_Q x \in T]; pose A_K := [set x | of_K x \in T]; pose A_V := [set x | of_V x \in T].
pose A_P := [set x | of_pair x \in T]; pose A_O := [set x | of_out x \in T].
have few : #|A_Q| + #|A_K| + #|A_V| + #|A_O| + #|A_P| <= Y.
  by rewrite card_things in room_T; rewrite -!addnA [#|A_O| + _]addnC.
have rows_Q : d * #|queries| <= #|A_Q|.
  rewrite mulnC -[X in _ * X]card_ord -cardsT -cardsX; apply/subset_leq_card/subsetP => -[i c].
  by rewrite !inE andbT => /forallP; apply.
have rows_K : d * #|keys| <= #|A_K|.
  rewrite mulnC -[X in _ * X]card_ord -cardsT -cardsX; apply/subset_leq_card/subsetP => -[k c].
  by rewrite !inE andbT => /forallP; apply.
have some_pairs : #|pairs| <= #|queries| * #|keys| + #|A_P|.
  rewrite -cardsX (leq_trans _ (leq_card_setU _ _)) //; apply/subset_leq_card/subsetP => -[i k].
  rewrite !inE /= => /orP[->|/forallP both]; first by rewrite orbT.
  by apply/orP; left; apply/andP; split; apply/forallP => c; move: (both c); rewrite inE => /andP[].
have shadows : #|e| * #|e| <= #|pairs| * #|A_V| * #|A_O|.
  apply: leq_trans (loomis_whitney e) _.
  apply: leq_mul; first apply: leq_mul; apply: subset_leq_card; apply/subsetP => x /imsetP[[[i k] c] /all_explained[]].
  - by move=> _ _ ok ->; rewrite inE.
  - by move=> _ ok _ ->; rewrite inE.
  - by move=> ok _ _ ->; rewrite inE.
have [] := @most_terms Y d #|A_Q| #|A_K| #|A_V| #|A_O| #|A_P| #|pairs| #|queries| #|keys| #|e|; try exact/leP.
- by move/leP; left.
- by move/leP; right.
Qed.
End Phases.
